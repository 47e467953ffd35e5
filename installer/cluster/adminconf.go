package cluster

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// APITask waits for the API server, which may still be starting after a reboot.
func APITask() task.Task {
	return task.Task{
		Name:  "api-server",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Do: func(ctx context.Context, t *task.Host) error {
			const start = 2 * time.Minute
			return task.Eventually(ctx, start, func(ctx context.Context) error {
				_, err := t.Kubectl(ctx, task.ReadyQuestion()...)
				return err
			})
		},
	}
}

// AdminConfTask copies the administrator's kubeconfig into the work directory.
func AdminConfTask() task.Task {
	return task.Task{
		Name:  "admin-conf",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.Site.Distribution.AdminKubeconfig(ctx, t)
			if errors.Is(err, fs.ErrNotExist) {
				task.Because(ctx, "there is no cluster yet")
				return false, nil
			}
			if err != nil {
				return false, err
			}
			here, err := t.Site.Dir.Read(task.AdminConfFile)
			if err != nil || !bytes.Equal(here, there) {
				task.Because(ctx, "the work directory has no current admin.conf")
			}
			return err == nil && bytes.Equal(here, there), kube.CheckKubeconfig(there)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			data, err := t.Site.Distribution.AdminKubeconfig(ctx, t)
			if err := errors.Join(err, kube.CheckKubeconfig(data)); err != nil {
				return err
			}
			return t.Site.Dir.Write(task.AdminConfFile, data)
		},
	}
}
