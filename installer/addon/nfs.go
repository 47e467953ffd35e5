package addon

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// ExportsFile is separate from /etc/exports, which belongs to the operator. exportfs(8) reads both.
	ExportsFile = "/etc/exports.d/kkbundle.exports"
)

// StorageHostTasks prepares hosts for NFS.
func StorageHostTasks(c *manifest.Cluster) []task.Task {
	if !c.Storage.NFS {
		return nil
	}
	return []task.Task{NFSServerTask(c), nfsClientTask()}
}

// NFSServerTask exports a directory to the nodes only.
func NFSServerTask(c *manifest.Cluster) task.Task {
	return task.Settle(task.Task{
		Name:     "nfs-server",
		Roles:    []manifest.Role{manifest.RoleNFS},
		Packages: []string{"nfs-server"},
		Leaves:   task.Leaves{Undo: undoExport(c.Storage.NFSPath)},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		unit, err := nfsUnit(ctx, t)
		if err != nil {
			return task.Setting{}, err
		}
		return task.Setting{
			Files: []task.File{{
				Path: ExportsFile, Mode: 0o644,
				Data: exports(c.Storage.NFSPath, t.Site.WithRole(manifest.RoleCluster)),
			}},
			Apply: func(ctx context.Context, t *task.Host) error { return export(ctx, t, c.Storage.NFSPath, unit) },
			Holds: func(ctx context.Context, t *task.Host) (bool, error) {
				if there, err := t.Test(ctx, "test", "-d", c.Storage.NFSPath); err != nil || !there {
					return false, err
				}
				return t.Test(ctx, "systemctl", "is-active", "--quiet", unit)
			},
		}, nil
	})
}

// exports returns a line of exports(5) for each address of a node. no_root_squash: the provisioner creates the volumes'
// directories as root, and pods own files as any user.
func exports(dir string, nodes []*task.Host) []byte {
	var b strings.Builder
	b.WriteString(hostfile.Author + ": the cluster's nodes.\n")
	for _, t := range nodes {
		addresses := []string{t.IP.String()}
		if six := t.InternalIPv6; six.IsValid() && six != t.IP {
			addresses = append(addresses, six.String())
		}
		for _, a := range addresses {
			fmt.Fprintf(&b, "%s %s(rw,sync,no_subtree_check,no_root_squash)\n", dir, a)
		}
	}
	return []byte(b.String())
}

// nfsUnit returns the server's unit: nfs-kernel-server in older packages of Debian, nfs-server everywhere else.
func nfsUnit(ctx context.Context, t *task.Host) (string, error) {
	for _, unit := range []string{"nfs-server.service", "nfs-kernel-server.service"} {
		if there, err := t.Test(ctx, "systemctl", "cat", unit); err != nil || there {
			return unit, err
		}
	}
	if t.Site.DryRun {
		return "nfs-server.service", nil // its package may be installed later
	}
	return "", errors.New("NFS server not found; install nfs-kernel-server (Debian, Ubuntu) or nfs-utils")
}

// export creates the directory and loads the exports. A running server keeps its other exports.
func export(ctx context.Context, t *task.Host, dir, unit string) error {
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0755", dir); err != nil {
		return err
	}
	runs, err := t.Test(ctx, "systemctl", "is-active", "--quiet", unit)
	if err != nil {
		return err
	}
	if !runs {
		if err := t.Write(ctx, task.File{
			Path: marks.NFSServerBefore, Mode: 0o600,
			Data: []byte(unit + "\n"),
		}); err != nil {
			return err
		}
	}
	if err := t.Systemctl(ctx, "enable", "--now", unit); err != nil {
		return t.WithUnitLog(ctx, unit, err)
	}
	return t.Run(ctx, "exportfs", "-ra")
}

// undoExport removes the export and stops a server that the installation started. The directory's content is kept or
// deleted, as --with-data says.
func undoExport(dir string) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		there, err := t.Test(ctx, "test", "-e", ExportsFile)
		if err != nil || !there {
			return err
		}
		if t.Site.WithData {
			if err := t.Empty(ctx, dir); err != nil {
				return err
			}
		} else if err := t.RecordData(ctx, dir); err != nil {
			return err
		}
		if err := stopServer(ctx, t); err != nil {
			return err
		}
		// last: its existence means that the export is to be undone
		if err := t.Run(ctx, "rm", "-f", ExportsFile); err != nil {
			return err
		}
		_, err = t.Test(ctx, "rmdir", path.Dir(ExportsFile)) // stays if the operator has exports there
		return err
	}
}

// stopServer removes the export from the server, and stops a server that did not run before.
func stopServer(ctx context.Context, t *task.Host) error {
	if err := t.Write(ctx, task.File{Path: ExportsFile, Mode: 0o644, Data: nil}); err != nil {
		return err
	}
	if _, err := t.Test(ctx, "exportfs", "-ra"); err != nil {
		return err
	}
	started, err := t.Test(ctx, "test", "-e", marks.NFSServerBefore)
	if err != nil || !started {
		return err
	}
	unit, err := t.Read(ctx, marks.NFSServerBefore)
	if err != nil {
		return err
	}
	for _, known := range []string{"nfs-server.service", "nfs-kernel-server.service"} {
		if strings.TrimSpace(string(unit)) != known {
			continue
		}
		if _, err := t.Test(ctx, "systemctl", "disable", "--now", known); err != nil {
			return err
		}
	}
	return nil
}

func nfsClientTask() task.Task {
	return task.Task{
		Name:     "nfs-client",
		Roles:    []manifest.Role{manifest.RoleCluster},
		Packages: []string{"nfs-client"},
		Do: func(ctx context.Context, t *task.Host) error {
			can, err := t.HasCommands(ctx, "mount.nfs")
			if err != nil || can {
				return err
			}
			return errors.New("mount.nfs not found; install nfs-common (Debian, Ubuntu) or nfs-utils")
		},
	}
}
