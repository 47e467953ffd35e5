package installer

import (
	"context"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// A ForeignError says that a host belongs to a cluster that kkbundle has not made.
type ForeignError struct {
	Host string
	// Found are the files that say so.
	Found []string
}

// Error names the host and the files.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to a cluster that kkbundle has not made: it has %s", e.Host, strings.Join(e.Found, ", "))
}

// Hint says what to do about it.
func (e *ForeignError) Hint() string {
	return "nothing was touched, and --force does not change that; correct the inventory, or, if that cluster is not needed any more, take it off with kkbundle reset --foreign --limit " + e.Host
}

// checkForeign refuses hosts of somebody else's cluster before anything is changed on any host.
func (r *run) checkForeign(ctx context.Context) error {
	return r.onAll(r.connected(manifest.RoleCluster), func(_ int, t *Target) error {
		if t.failure != nil || !r.isWanted(t) {
			return nil
		}
		found, err := t.foreign(ctx)
		if err != nil || len(found) == 0 {
			return err
		}
		return &ForeignError{Host: t.Name, Found: found}
	})
}

// foreignScript prints which of the paths exist, unless a stamp in the directory $1, or who wrote the unit $2 or $3, says that
// kubeadm or k3s was started by us.
const foreignScript = `cd "$1" 2>/dev/null && for s in member kubeadm-begun k3s*; do [ ! -e "$s" ] || exit 0; done
for u in "$2" "$3"; do [ ! -e "$u" ] || [ "$(head -n 1 "$u")" != "` + hostfile.Mark + `" ] || exit 0; done
shift 3; for p; do [ ! -e "$p" ] || printf '%s\n' "$p"; done`

// foreign returns what of another cluster is on the host. What kubeadm only makes while it initialises or joins, and k3s when
// it runs, counts, and neither what an operator prepares, such as authorities of their own, nor volumes that outlive a reset.
func (t *Target) foreign(ctx context.Context) ([]string, error) {
	paths := []string{
		"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/manifests/kube-apiserver.yaml",
		"/etc/kubernetes/manifests/etcd.yaml", "/var/lib/rancher/rke2", k3sData + "/agent/kubelet.kubeconfig", k3sData + "/server/tls",
	}
	const units = "/etc/systemd/system/"
	out, err := t.output(ctx, append([]string{"sh", "-c", foreignScript, "sh", stampDir, units + k3sUnit(true), units + k3sUnit(false)}, paths...)...)
	return strings.Fields(string(out)), err
}

// noForeign tells that there is nothing of another cluster, or that it is not to be touched.
func noForeign(ctx context.Context, t *Target) (bool, error) {
	if !t.run.Foreign {
		return true, nil
	}
	found, err := t.foreign(ctx)
	if len(found) > 0 {
		because(ctx, "it has %s", strings.Join(found, ", "))
	}
	return len(found) == 0, err
}

// removeForeign takes somebody else's cluster off the host, with what took it there: k3s' and RKE2's own scripts, or kubeadm.
// The container runtime stays, which is not only that cluster's.
func removeForeign(ctx context.Context, t *Target) error {
	const uninstall = `for s in k3s-uninstall.sh k3s-agent-uninstall.sh rke2-uninstall.sh; do
if p=$(command -v "$s"); then "$p"; fi; done
if command -v kubeadm >/dev/null; then kubeadm reset --force || true; fi
if systemctl cat kubelet.service >/dev/null 2>&1; then systemctl disable --now kubelet.service; fi`
	if err := t.command(ctx, "sh", "-c", uninstall); err != nil {
		return err
	}
	if err := t.unmount(ctx, "/var/lib/kubelet/"); err != nil {
		return err
	}
	if err := t.empty(ctx, "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/rancher/k3s", "/var/lib/rancher/rke2", "/etc/rancher"); err != nil {
		return err
	}
	return removeNetwork(ctx, t)
}
