package upgrade

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// upgradesSaved is the number of upgrades whose saved data stay.
const upgradesSaved = 2

// A saving saves data to the work directory before an upgrade or a rollback.
type saving struct{ *nodeWalk }

// saveTask saves etcd and kubeadm's configuration to the work directory. It runs once for an upgrade, however often
// that is continued: a rollback needs the state before it. The data of the last two upgrades stay.
func (s saving) saveTask(plan Plan) task.Task {
	return task.Task{
		Name: "save", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First,
		Done: func(context.Context, *task.Host) (bool, error) {
			to, err := marks.SavedFor(s.Dir)
			return to == plan.To, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			const unfinished = marks.SavedUnfinished
			if err := s.Dir.Root.RemoveAll(unfinished); err != nil {
				return fmt.Errorf("work directory: %w", err)
			}
			for _, name := range []string{"kubeadm-config", "kubelet-config", "kube-proxy", "coredns"} {
				data, err := t.Kubectl(task.WithoutOutput(ctx), "get", "configmap", name, "--namespace=kube-system",
					"--output=yaml", "--ignore-not-found")
				if err == nil {
					err = s.Dir.Write(path.Join(unfinished, name+".yaml"), data)
				}
				if err != nil {
					return fmt.Errorf("save ConfigMap %s: %w", name, err)
				}
			}
			if err := s.saveEtcd(ctx, t, path.Join(unfinished, "etcd.db")); err != nil {
				return fmt.Errorf("save etcd: %w", err)
			}
			dir := path.Join(marks.SavedDir, s.Now().UTC().Format(savedTime)+"-"+plan.From+"-to-"+plan.To)
			if err := s.Dir.Root.Rename(unfinished, dir); err != nil {
				return fmt.Errorf("work directory: %w", err)
			}
			if err := marks.Save(s.Dir, plan.To, dir); err != nil {
				return err
			}
			if s.how.Saved != nil {
				s.how.Saved(s.Dir.Join(dir))
			}
			return s.forgetSaved()
		},
	}
}

// savedTime begins the names of directories of saved data.
const savedTime = "20060102T150405Z"

// forgetSaved removes the data of earlier upgrades.
func (s saving) forgetSaved() error {
	all, err := fs.ReadDir(s.Dir.Root.FS(), marks.SavedDir) // sorted by name, so by time
	if err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	saved := slices.DeleteFunc(all, func(d fs.DirEntry) bool {
		at, _, _ := strings.Cut(d.Name(), "-")
		_, err := time.Parse(savedTime, at)
		return err != nil || !d.IsDir()
	})
	for _, d := range saved[:max(0, len(saved)-upgradesSaved)] {
		if err := s.Dir.Root.RemoveAll(path.Join(marks.SavedDir, d.Name())); err != nil {
			return fmt.Errorf("work directory: %w", err)
		}
	}
	return nil
}

// saveEtcd copies a snapshot of a working member to the work directory, encrypted to the cluster's recipients.
func (s saving) saveEtcd(ctx context.Context, t *task.Host, to string) error {
	if s.Cluster.Etcd.Type == manifest.EtcdProvided {
		s.Tell(task.Event{
			Phase: "save", Task: "save", Host: t.Name, State: task.Warned,
			Message: "your etcd is not saved (etcd.type: provided): make sure that it has a backup",
		})
		return nil
	}
	if len(s.Cluster.Backup.Recipients) > 0 {
		to += ".age"
	}
	member, err := etcdops.WorkingMember(ctx, s.Run)
	if err == nil {
		_, err = etcdops.Save(ctx, member, s.Dir.Join(to))
	}
	return err
}

// saved records the end of the upgrade: the next one saves anew.
func (s saving) saved() error { return marks.EndSaved(s.Dir) }
