package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// upgradeDir is the work directory's folder for data saved before upgrades. The file upgradeNow names the version and
	// the directory of the upgrade in progress.
	upgradeDir = "upgrade"
	upgradeNow = upgradeDir + "/under-way"
)

// saveTask saves etcd and kubeadm's configuration to the work directory. It runs once for an upgrade, however often
// that is continued: a rollback needs the state before it.
func (u *upgrade) saveTask(plan UpgradePlan) task.Task {
	return task.Task{
		Name: "save", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First,
		Done: func(context.Context, *task.Host) (bool, error) {
			data, err := u.Dir.Read(upgradeNow)
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			to, _, _ := strings.Cut(string(data), " ")
			return to == plan.To, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			dir := path.Join(upgradeDir, u.Now().UTC().Format("20060102T150405Z")+"-"+plan.From+"-to-"+plan.To)
			for _, name := range []string{"kubeadm-config", "kubelet-config", "kube-proxy", "coredns"} {
				data, err := t.Kubectl(task.WithoutOutput(ctx), "get", "configmap", name, "--namespace=kube-system", "--output=yaml", "--ignore-not-found")
				if err == nil {
					err = u.Dir.Write(path.Join(dir, name+".yaml"), data)
				}
				if err != nil {
					return fmt.Errorf("save ConfigMap %s: %w", name, err)
				}
			}
			if err := u.saveEtcd(ctx, t, path.Join(dir, "etcd.db")); err != nil {
				return fmt.Errorf("save etcd: %w", err)
			}
			return u.Dir.Write(upgradeNow, []byte(plan.To+" "+dir+"\n"))
		},
	}
}

// saveEtcd copies a snapshot of kubeadm's etcd to the work directory. External etcd has its own backups.
func (u *upgrade) saveEtcd(ctx context.Context, t *task.Host, to string) (err error) {
	if u.Cluster.Etcd.Type != manifest.EtcdInternal {
		u.Tell(task.Event{
			Phase: "save", Task: "save", Host: t.Name, State: task.Warned,
			Message: "external etcd is not saved: make sure that it has a backup",
		})
		return nil
	}
	snapshot := path.Join(u.Cluster.Etcd.DataDir, "kkbundle-before-upgrade.db") // both the pod and the host see this directory
	defer func() {
		err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", snapshot, snapshot+".part"))
	}()
	if _, err := t.Kubectl(ctx, etcdctlArgs(t, "snapshot", "save", snapshot)...); err != nil {
		return err
	}
	out, err := u.Dir.Create(to)
	if err != nil {
		return err
	}
	err = t.Conn.Run(task.WithoutOutput(ctx), host.Cmd{Args: []string{"cat", snapshot}, Stdout: out})
	return out.End(err)
}

// saved records the end of the upgrade: the next one saves anew.
func (u *upgrade) saved() error { return u.Dir.Remove(upgradeNow) }
