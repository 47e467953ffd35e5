package installer

import (
	"context"
	_ "embed" // scripts
	"fmt"
	"path"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// etcdBackups is where hosts keep what they save of etcd.
	etcdBackups     = "/var/backups/kkbundle/etcd"
	etcdBackupPath  = "/usr/local/lib/kkbundle/etcd-backup"
	etcdBackupUnit  = "kkbundle-etcd-backup.service"
	etcdBackupTimer = "kkbundle-etcd-backup.timer"
)

// etcdNodeTasks are about etcd where there is a cluster already.
func etcdNodeTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	own := c.Kubernetes.Distribution.RunsEtcd()
	if !own && c.Etcd.Type != manifest.EtcdInternal {
		tasks = append(tasks, etcdEndpointsTask())
	}
	if c.Etcd.Backup != nil && c.Etcd.Type != manifest.EtcdProvided && (!own || c.Etcd.Type == manifest.EtcdExternal) {
		tasks = append(tasks, etcdBackupTask(*c.Etcd.Backup))
	}
	return tasks
}

// etcdToolsTasks give control planes what kubeadm's etcd has in its image only. Where the cluster is down and etcd has to be
// restored no image runs any more, and nobody can fetch a program there.
func etcdToolsTasks(c *manifest.Cluster) []Task {
	if c.Etcd.Type != manifest.EtcdInternal {
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
			Units: []string{etcdBackupTimer, etcdBackupUnit}, Paths: []string{etcdBackupPath}, Data: []string{etcdBackups},
		},
	}, func(_ context.Context, t *Target) (setting, error) {
		return setting{
			files: []textFile{
				{etcdBackupPath, 0o755, t.backupScript(b.Keep)},
				{path.Join("/etc/systemd/system", etcdBackupUnit), 0o644, []byte(etcdBackupUnitFile)},
				{path.Join("/etc/systemd/system", etcdBackupTimer), 0o644, []byte(backupTimer(time.Duration(b.Every)))},
			},
			units: []string{etcdBackupTimer},
		}, nil
	})
}

//go:embed scripts/etcd-backup.sh
var etcdBackupScript string

// backupScript saves etcd and keeps that many copies.
func (t *Target) backupScript(keep int) []byte {
	args := append([]string{etcdBackups, strconv.Itoa(keep)}, t.etcdctlTo(t.etcdEndpoint())...)
	return scriptFile(host.Script("etcd-backup.sh", etcdBackupScript, args...))
}

const etcdBackupUnitFile = hostfile.Mark + `
[Unit]
Description=Save etcd

[Service]
Type=oneshot
ExecStart=` + etcdBackupPath + `
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
