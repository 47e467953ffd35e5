package reset

import (
	"context"
	_ "embed"
	"strings"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

//go:embed scripts/uninstall-foreign.sh
var uninstallForeignScript string

// noForeign reports whether the host has nothing of another cluster, or such a cluster is not to be removed.
func noForeign(ctx context.Context, t *task.Host) (bool, error) {
	if !t.Site.Foreign {
		return true, nil
	}
	found, err := begin.Foreign(ctx, t)
	if len(found) > 0 {
		task.Because(ctx, "it has %s", strings.Join(found, ", "))
	}
	return len(found) == 0, err
}

// removeForeign removes another cluster from the host with the tool that installed it: the scripts of k3s and RKE2, or
// kubeadm. The container runtime stays, because other programs may use it.
func removeForeign(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, host.Script("uninstall-foreign.sh", uninstallForeignScript)...); err != nil {
		return err
	}
	if err := t.Unmount(ctx, "/var/lib/kubelet/"); err != nil {
		return err
	}
	if err := t.Empty(ctx, "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/rancher/k3s",
		"/var/lib/rancher/rke2", "/etc/rancher"); err != nil {
		return err
	}
	return removeNetwork(ctx, t)
}
