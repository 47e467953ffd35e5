package installer

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// etcdBackups is where hosts keep what they save of etcd.
	etcdBackups      = "/var/backups/kkbundle/etcd"
	etcdBackupScript = "/usr/local/lib/kkbundle/etcd-backup"
	etcdBackupUnit   = "kkbundle-etcd-backup.service"
	etcdBackupTimer  = "kkbundle-etcd-backup.timer"
)

// etcdNodeTasks are about etcd where there is a cluster already.
func etcdNodeTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	if !isK3s(c) && c.Etcd.Type != "internal" {
		tasks = append(tasks, etcdEndpointsTask())
	}
	if c.Etcd.Backup != nil && c.Etcd.Type != "provided" && (!isK3s(c) || c.Etcd.Type == "external") {
		tasks = append(tasks, etcdBackupTask(*c.Etcd.Backup))
	}
	return tasks
}

// etcdToolsTasks give control planes what kubeadm's etcd has in its image only. Where the cluster is down and etcd has to be
// restored no image runs any more, and nobody can fetch a program there.
func etcdToolsTasks(c *manifest.Cluster) []Task {
	if c.Etcd.Type != "internal" {
		return nil
	}
	return []Task{settle(Task{
		Name: "etcd-tools", Apart: true, Roles: []manifest.Role{manifest.RoleControlPlane}, Files: etcdPrograms("etcdctl", "etcdutl"),
	}, func(context.Context, *Target) (setting, error) { return setting{}, nil })}
}

// etcdBackupTask makes every host of etcd save its own copy, so that no host's loss takes all copies with it and nobody has to
// be chosen.
func etcdBackupTask(b manifest.Backup) Task {
	return settle(Task{
		Name:  "etcd-backup",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Files: etcdPrograms("etcdctl", "etcdutl"),
		Leaves: Leaves{
			Units: []string{etcdBackupTimer, etcdBackupUnit}, Paths: []string{etcdBackupScript}, Data: []string{etcdBackups},
		},
	}, func(_ context.Context, t *Target) (setting, error) {
		return setting{
			files: []textFile{
				{etcdBackupScript, 0o755, []byte(t.backupScript(b.Keep))},
				{path.Join("/etc/systemd/system", etcdBackupUnit), 0o644, []byte(etcdBackupUnitFile)},
				{path.Join("/etc/systemd/system", etcdBackupTimer), 0o644, []byte(backupTimer(time.Duration(b.Every)))},
			},
			units: []string{etcdBackupTimer},
		}, nil
	})
}

// backupScript saves etcd. A copy has its name when it is whole, checked and on the disk; the oldest go after that.
func (t *Target) backupScript(keep int) string {
	return fmt.Sprintf(`#!/bin/sh
# Written by kkbundle. Saves etcd to %[1]s and keeps the newest %[2]d copies.
set -eu
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=%[1]s
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock --nonblock 9 || { echo "another save is at work" >&2; exit 1; }
trap 'rm -f "$dir/.new.db" "$dir/.new.db.part"' EXIT
trap 'exit 1' HUP INT TERM
rm -f "$dir/.new.db" "$dir/.new.db.part"
%[3]s snapshot save "$dir/.new.db"
# The last 32 bytes are the SHA-256 of all others.
want=$(tail -c 32 "$dir/.new.db" | od -An -v -tx1 | tr -d ' \n')
have=$(head -c -32 "$dir/.new.db" | sha256sum | cut -d ' ' -f 1)
[ "$want" = "$have" ] || { echo "what was saved is not what etcd sent" >&2; exit 1; }
etcdutl snapshot status "$dir/.new.db"
sync "$dir/.new.db"
mv "$dir/.new.db" "$dir/etcd-$(date -u +%%Y%%m%%dT%%H%%M%%SZ).db"
sync "$dir"
ls -1r "$dir" | grep '^etcd-.*\.db$' | tail -n +%[4]d | while read -r old; do rm -f "$dir/$old"; done
`, etcdBackups, keep, commandLine(t.etcdctlTo(t.etcdEndpoint())), keep+1)
}

const etcdBackupUnitFile = hostfile.Mark + `
[Unit]
Description=Save etcd

[Service]
Type=oneshot
ExecStart=` + etcdBackupScript + `
Nice=10
IOSchedulingClass=idle
`

// backupTimer saves soon after the host has started, and then as often as it is wanted.
func backupTimer(every time.Duration) string {
	return fmt.Sprintf(hostfile.Mark+`
[Unit]
Description=Save etcd every %s

[Timer]
OnActiveSec=1min
OnUnitActiveSec=%ds
AccuracySec=1s

[Install]
WantedBy=timers.target
`, every, max(1, int(every.Seconds())))
}
