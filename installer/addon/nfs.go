package installer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// exportsFile is beside /etc/exports, which is the operator's. exportfs(8) reads both.
	exportsFile = "/etc/exports.d/kkbundle.exports"
	// nfsWas says that the server did not run before an installation.
	nfsWas = beforeDir + "/nfs-server"
)

// storageHostTasks make the hosts ready for storage on the network.
func storageHostTasks(c *manifest.Cluster) []Task {
	if !c.Storage.NFS {
		return nil
	}
	return []Task{nfsServerTask(c), nfsClientTask()}
}

// nfsServerTask exports a directory to the nodes and nobody else.
func nfsServerTask(c *manifest.Cluster) Task {
	return settle(Task{
		Name:     "nfs-server",
		Roles:    []manifest.Role{manifest.RoleNFS},
		Packages: []string{"nfs-server"},
		Leaves:   Leaves{Undo: stopExporting(c.Storage.NFSPath)},
	}, func(ctx context.Context, t *Target) (setting, error) {
		unit, err := t.nfsUnit(ctx)
		if err != nil {
			return setting{}, err
		}
		return setting{
			files: []textFile{{exportsFile, 0o644, exports(c.Storage.NFSPath, t.run.withRole(manifest.RoleCluster))}},
			apply: func(ctx context.Context, t *Target) error { return t.export(ctx, c.Storage.NFSPath, unit) },
			holds: func(ctx context.Context, t *Target) (bool, error) {
				if there, err := t.test(ctx, "test", "-d", c.Storage.NFSPath); err != nil || !there {
					return false, err
				}
				return t.test(ctx, "systemctl", "is-active", "--quiet", unit)
			},
		}, nil
	})
}

// exports is a line of exports(5) for each address of a node. Root of a node stays root on the server: the provisioner makes the
// volumes' directories as root, and pods own their files as whoever they are.
func exports(dir string, nodes []*Target) []byte {
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

// nfsUnit is the server's unit: nfs-server nearly everywhere, and nfs-kernel-server where Debian's older packages have no other.
func (t *Target) nfsUnit(ctx context.Context) (string, error) {
	for _, unit := range []string{"nfs-server.service", "nfs-kernel-server.service"} {
		if there, err := t.test(ctx, "systemctl", "cat", unit); err != nil || there {
			return unit, err
		}
	}
	if t.run.DryRun {
		return "nfs-server.service", nil // its package may come before
	}
	return "", errors.New("there is no NFS server on this host; install nfs-kernel-server (Debian, Ubuntu) or nfs-utils")
}

// export makes the directory, and the server look at its exports. A server that runs goes on serving what else it does.
func (t *Target) export(ctx context.Context, dir, unit string) error {
	if err := t.command(ctx, "mkdir", "-p", "-m", "0755", dir); err != nil {
		return err
	}
	runs, err := t.test(ctx, "systemctl", "is-active", "--quiet", unit)
	if err != nil {
		return err
	}
	if !runs {
		if err := t.write(ctx, textFile{nfsWas, 0o600, []byte(unit + "\n")}); err != nil {
			return err
		}
	}
	if err := t.systemctl(ctx, "enable", "--now", unit); err != nil {
		return t.withUnitLog(ctx, unit, err)
	}
	return t.command(ctx, "exportfs", "-ra")
}

// stopExporting takes the export back, and stops a server that an installation has started. What is in the directory goes where
// data are to go, on the host that exports it and no other.
func stopExporting(dir string) func(ctx context.Context, t *Target) error {
	return func(ctx context.Context, t *Target) error {
		there, err := t.test(ctx, "test", "-e", exportsFile)
		if err != nil || !there {
			return err
		}
		if t.run.WithData {
			if err := t.empty(ctx, dir); err != nil {
				return err
			}
		} else if err := t.leaveData(ctx, dir); err != nil {
			return err
		}
		if err := t.stopServer(ctx); err != nil {
			return err
		}
		return t.command(ctx, "rm", "-f", exportsFile) // last: it says that there is something to undo
	}
}

// stopServer makes the server forget the export, and stops it if it did not run before.
func (t *Target) stopServer(ctx context.Context) error {
	if err := t.write(ctx, textFile{exportsFile, 0o644, nil}); err != nil {
		return err
	}
	if _, err := t.test(ctx, "exportfs", "-ra"); err != nil {
		return err
	}
	started, err := t.test(ctx, "test", "-e", nfsWas)
	if err != nil || !started {
		return err
	}
	unit, err := t.read(ctx, nfsWas)
	if err != nil {
		return err
	}
	for _, known := range []string{"nfs-server.service", "nfs-kernel-server.service"} {
		if strings.TrimSpace(string(unit)) != known {
			continue
		}
		if _, err := t.test(ctx, "systemctl", "disable", "--now", known); err != nil {
			return err
		}
	}
	return nil
}

// nfsClientTask checks that nodes can mount volumes.
func nfsClientTask() Task {
	return Task{
		Name:     "nfs-client",
		Roles:    []manifest.Role{manifest.RoleCluster},
		Packages: []string{"nfs-client"},
		Do: func(ctx context.Context, t *Target) error {
			can, err := t.hasCommands(ctx, "mount.nfs")
			if err != nil || can {
				return err
			}
			return errors.New("this host cannot mount NFS; install nfs-common (Debian, Ubuntu) or nfs-utils")
		},
	}
}
