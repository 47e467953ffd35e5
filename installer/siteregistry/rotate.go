package siteregistry

import (
	"context"
	"errors"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Logins selects logins of the registry.
type Logins struct{ Pull, Push bool }

// ErrAdmin means that kkbundle pushes to Harbor as its administrator.
var ErrAdmin = errors.New(
	"kkbundle pushes to Harbor as its administrator: change that password in Harbor and write it to WORKDIR/" +
		task.HarborAdminFile + "; rotate only the hosts' login (--pull)")

// RotateTask creates the new logins in the work directory.
func RotateTask(which Logins) task.Task {
	return task.Task{
		Name:  "rotate-logins",
		Where: task.Here,
		Done: func(ctx context.Context, _ *task.Host) (bool, error) {
			task.Because(ctx, "a rotation was requested")
			return false, nil
		},
		Do: func(_ context.Context, t *task.Host) error {
			t.Site.Dir.Making.Lock()
			defer t.Site.Dir.Making.Unlock()
			if which.Push {
				if err := t.Site.Dir.Write(task.PushPassFile, []byte(newSecret())); err != nil {
					return err
				}
			}
			if !which.Pull {
				return nil
			}
			return Of(t.Site.Cluster).hosts.rotate(t.Site)
		},
	}
}

// LoginTasks returns the tasks that create the hosts' login in a registry with accounts of its own.
func LoginTasks(c *manifest.Cluster) []task.Task {
	if c.ImageRegistry.Type != manifest.RegistryHarbor {
		return nil
	}
	return []task.Task{harborLoginTask()}
}

// EndRotationTasks returns the tasks that end the hosts' old login.
func EndRotationTasks(c *manifest.Cluster) []task.Task {
	end := task.Task{
		Name:  "end-rotation",
		Where: task.Here,
		Done: func(_ context.Context, t *task.Host) (bool, error) {
			old, err := Of(t.Site.Cluster).hosts.old(t.Site)
			return old == nil, err
		},
		Do: func(_ context.Context, t *task.Host) error {
			return t.Site.Dir.Remove(OldLogin(Of(t.Site.Cluster).hosts.name))
		},
	}
	if c.ImageRegistry.Type != manifest.RegistryHarbor {
		return []task.Task{end}
	}
	return []task.Task{oldRobotTask(), end}
}

// oldRobotTask deletes the robot account that a rotation replaced.
func oldRobotTask() task.Task {
	return task.Task{
		Name:  "harbor-old-login",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done: func(_ context.Context, t *task.Host) (bool, error) {
			s, err := Credentials(t.Site)
			return s.old == nil || s.old.Username == s.pull.Username, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			s, err := Credentials(t.Site)
			if err != nil {
				return err
			}
			client, connections, err := HarborClient(t)
			if err != nil {
				return err
			}
			defer connections.CloseIdleConnections()
			return client.DeleteRobot(ctx, strings.TrimPrefix(s.old.Username, robotPrefix))
		},
	}
}
