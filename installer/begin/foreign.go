package begin

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// A ForeignError is a host that belongs to a cluster not made by kkbundle.
type ForeignError struct {
	Host string
	// Found are the other cluster's files.
	Found []string
}

// Error names the host and the files.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to a cluster that kkbundle has not made: it has %s", e.Host,
		strings.Join(e.Found, ", "))
}

// Hint returns the remedy.
func (e *ForeignError) Hint() string {
	return "nothing was touched, and --force does not change that; correct the inventory, or, if that cluster is no longer needed, remove it with kkbundle reset --foreign --limit " + e.Host
}

// CheckForeign refuses hosts of other clusters, and machines of Cluster API, before any host is changed.
func CheckForeign(ctx context.Context, r *engine.Run) error {
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		if t.Err != nil || !r.IsWanted(t) {
			return nil
		}
		if _, err := RefuseOwned(ctx, t); err != nil {
			return err
		}
		return RefuseForeign(ctx, t)
	})
}

// RefuseForeign returns a ForeignError if the host belongs to another cluster.
func RefuseForeign(ctx context.Context, t *task.Host) error {
	found, err := Foreign(ctx, t)
	if err != nil || len(found) == 0 {
		return err
	}
	return &ForeignError{Host: t.Name, Found: found}
}

//go:embed scripts/list-foreign.sh
var listForeignScript string

// Foreign returns the files of another cluster on the host: those that kubeadm creates during init or join, and k3s at
// run time. Files that an operator prepares, such as authorities, and volumes that outlive a reset do not count.
func Foreign(ctx context.Context, t *task.Host) ([]string, error) {
	paths := []string{
		"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf",
		"/etc/kubernetes/manifests/kube-apiserver.yaml",
		"/etc/kubernetes/manifests/etcd.yaml", "/var/lib/rancher/rke2", cri.K3sData + "/agent/kubelet.kubeconfig",
		cri.K3sData + "/server/tls",
	}
	const units = "/etc/systemd/system/"
	list := host.Script("list-foreign.sh", listForeignScript, hostfile.Mark, task.StampDir, units+k3s.Unit(true),
		units+k3s.Unit(false))
	out, err := t.Output(ctx, append(list, paths...)...)
	return strings.Fields(string(out)), err
}
