package installer

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/task"
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
func checkForeign(ctx context.Context, r *engine.Run) error {
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		if t.Err != nil || !r.IsWanted(t) {
			return nil
		}
		found, err := foreign(ctx, t)
		if err != nil || len(found) == 0 {
			return err
		}
		return &ForeignError{Host: t.Name, Found: found}
	})
}

//go:embed scripts/list-foreign.sh
var listForeignScript string

//go:embed scripts/uninstall-foreign.sh
var uninstallForeignScript string

// foreign returns what of another cluster is on the host. What kubeadm only makes while it initialises or joins, and k3s when
// it runs, counts, and neither what an operator prepares, such as authorities of their own, nor volumes that outlive a reset.
func foreign(ctx context.Context, t *task.Host) ([]string, error) {
	paths := []string{
		"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/manifests/kube-apiserver.yaml",
		"/etc/kubernetes/manifests/etcd.yaml", "/var/lib/rancher/rke2", cri.K3sData + "/agent/kubelet.kubeconfig", cri.K3sData + "/server/tls",
	}
	const units = "/etc/systemd/system/"
	list := host.Script("list-foreign.sh", listForeignScript, hostfile.Mark, task.StampDir, units+k3s.Unit(true), units+k3s.Unit(false))
	out, err := t.Output(ctx, append(list, paths...)...)
	return strings.Fields(string(out)), err
}

// noForeign tells that there is nothing of another cluster, or that it is not to be touched.
func noForeign(ctx context.Context, t *task.Host) (bool, error) {
	if !t.Site.Foreign {
		return true, nil
	}
	found, err := foreign(ctx, t)
	if len(found) > 0 {
		task.Because(ctx, "it has %s", strings.Join(found, ", "))
	}
	return len(found) == 0, err
}

// removeForeign takes somebody else's cluster off the host, with what took it there: k3s' and RKE2's own scripts, or kubeadm.
// The container runtime stays, which is not only that cluster's.
func removeForeign(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, host.Script("uninstall-foreign.sh", uninstallForeignScript)...); err != nil {
		return err
	}
	if err := t.Unmount(ctx, "/var/lib/kubelet/"); err != nil {
		return err
	}
	if err := t.Empty(ctx, "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/rancher/k3s", "/var/lib/rancher/rke2", "/etc/rancher"); err != nil {
		return err
	}
	return removeNetwork(ctx, t)
}
