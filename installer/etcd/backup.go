package etcd

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// Backups is the directory of etcd snapshots on hosts.
	Backups         = "/var/backups/kkbundle/etcd"
	etcdBackupPath  = task.ProgramDir + "/bin/etcd-backup"
	etcdBackupUnit  = "kkbundle-etcd-backup.service"
	etcdBackupTimer = "kkbundle-etcd-backup.timer"
)

// NodeTasks returns the etcd tasks that need a running cluster.
func NodeTasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	own := c.Kubernetes.Distribution.RunsEtcd()
	if !own && c.Etcd.Type != manifest.EtcdInternal {
		tasks = append(tasks, etcdEndpointsTask())
	}
	if c.Etcd.Backup != nil && c.Etcd.Type != manifest.EtcdProvided && (!own || c.Etcd.Type == manifest.EtcdExternal) {
		tasks = append(tasks, etcdBackupTask(*c.Etcd.Backup))
	}
	return tasks
}

// ToolsTasks returns the task that installs etcdctl and etcdutl on control planes with kubeadm's etcd. A restore cannot
// use them from etcd's image: the cluster is down then.
func ToolsTasks(c *manifest.Cluster) []task.Task {
	if c.Etcd.Type != manifest.EtcdInternal {
		return nil
	}
	return []task.Task{task.Settle(task.Task{
		Name: "etcd-tools", Independent: true, Roles: []manifest.Role{manifest.RoleControlPlane}, Files: Programs("etcdctl", "etcdutl"),
	}, func(context.Context, *task.Host) (task.Setting, error) { return task.Setting{}, nil })}
}

// etcdBackupTask makes every etcd host save its own snapshots: the loss of one host loses no other snapshot.
func etcdBackupTask(b manifest.Backup) task.Task {
	return task.Settle(task.Task{
		Name:  "etcd-backup",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Files: Programs("etcdctl", "etcdutl"),
		Leaves: task.Leaves{
			Units: []string{etcdBackupTimer, etcdBackupUnit}, Paths: []string{etcdBackupPath}, Data: []string{Backups},
		},
	}, func(_ context.Context, t *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{
				{Path: etcdBackupPath, Mode: 0o755, Data: BackupScript(t, b.Keep)},
				{Path: path.Join("/etc/systemd/system", etcdBackupUnit), Mode: 0o644, Data: []byte(etcdBackupUnitFile)},
				{Path: path.Join("/etc/systemd/system", etcdBackupTimer), Mode: 0o644, Data: []byte(backupTimer(time.Duration(b.Every)))},
			},
			Apply: func(ctx context.Context, t *task.Host) error { return t.RemoveEarlier(ctx, path.Base(etcdBackupPath)) },
			Units: []string{etcdBackupTimer},
		}, nil
	})
}

//go:embed scripts/etcd-backup.sh
var etcdBackupScript string

// BackupScript returns the script that saves a snapshot, encrypted to the cluster's recipients, and keeps the newest ones.
func BackupScript(t *task.Host, keep int) []byte {
	args := append([]string{Backups, strconv.Itoa(keep), host.HelperPath, strings.Join(t.Site.Cluster.Backup.Recipients, "\n")}, CtlArgs(t, Endpoint(t))...)
	return task.ScriptFile(host.Script("etcd-backup.sh", etcdBackupScript, args...))
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

// backupTimer returns the timer: a snapshot one minute after its start, then one per interval.
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
