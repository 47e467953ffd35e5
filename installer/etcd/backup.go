package etcd

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node/s3"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// Backups is the directory of etcd snapshots on hosts.
	Backups        = "/var/backups/kkbundle/etcd"
	etcdBackupPath = task.ProgramDir + "/bin/etcd-backup"
	// BackupUnit is systemd's unit that makes a copy.
	BackupUnit = "kkbundle-etcd-backup.service"
	// BackupTimer is systemd's unit that starts BackupUnit.
	BackupTimer = "kkbundle-etcd-backup.timer"
	// s3Config describes the storage that copies are sent to, with its login. Only root reads it.
	s3Config = task.ConfigDir + "/etcd-backup-s3.json"
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
		Name: "etcd-tools", Independent: true, Roles: []manifest.Role{manifest.RoleControlPlane},
		Files: Programs("etcdctl", "etcdutl"),
	}, func(context.Context, *task.Host) (task.Setting, error) { return task.Setting{}, nil })}
}

// etcdBackupTask makes every etcd host save its own snapshots: the loss of one host loses no other snapshot. If
// copies are off, it removes the timer and leaves the copies.
func etcdBackupTask(b manifest.Backup) task.Task {
	step := task.Task{
		Name:  "etcd-backup",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Leaves: task.Leaves{
			Units: []string{BackupTimer, BackupUnit}, Paths: []string{etcdBackupPath, s3Config},
			Data: []string{Backups, path.Dir(Backups)}, // both are kkbundle's alone
		},
	}
	if b.Off {
		step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, path.Join("/etc/systemd/system", BackupTimer), etcdBackupPath, s3Config)
			return !there, err
		}
		step.Do = func(ctx context.Context, t *task.Host) error {
			for _, unit := range step.Leaves.Units {
				if err := t.RemoveUnit(ctx, unit); err != nil {
					return err
				}
			}
			return t.Run(ctx, append([]string{"rm", "-f", "--"}, step.Leaves.Paths...)...)
		}
		return step
	}
	step.Files = Programs("etcdctl", "etcdutl")
	return task.Settle(step, func(_ context.Context, t *task.Host) (task.Setting, error) {
		files, err := BackupFiles(t, b)
		return task.Setting{
			Files: files,
			Apply: func(ctx context.Context, t *task.Host) error {
				if t.Site.Cluster.Backup.S3 == nil {
					if err := t.Run(ctx, "rm", "-f", s3Config); err != nil {
						return err
					}
				}
				return t.RemoveEarlier(ctx, path.Base(etcdBackupPath))
			},
			Units: []string{BackupTimer},
		}, err
	})
}

// BackupFiles returns the timer of copies with its script and, if they are sent to a storage, the login for that.
func BackupFiles(t *task.Host, b manifest.Backup) ([]task.File, error) {
	files := []task.File{
		{Path: etcdBackupPath, Mode: 0o755, Data: BackupScript(t, b.Keep)},
		{Path: path.Join("/etc/systemd/system", BackupUnit), Mode: 0o644, Data: []byte(etcdBackupUnitFile)},
		{
			Path: path.Join("/etc/systemd/system", BackupTimer), Mode: 0o644,
			Data: []byte(backupTimer(time.Duration(b.Every))),
		},
	}
	storage, err := Storage(t.Site)
	if err != nil || storage == nil {
		return files, err
	}
	data, err := json.Marshal(storage)
	if err != nil {
		return nil, fmt.Errorf("login of the S3 storage: %w", err)
	}
	return append(files, task.File{Path: s3Config, Mode: 0o600, Data: append(data, '\n')}), nil
}

// Storage returns the storage that etcd hosts send copies to, with its login, or nil.
func Storage(s *task.Site) (*s3.Storage, error) {
	b := s.Cluster.Backup.S3
	if b == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	storage := &s3.Storage{
		Endpoint: b.Endpoint, Bucket: b.Bucket, Prefix: strings.Trim(b.Prefix, "/"),
		Region: cmp.Or(b.Region, "us-east-1"), AccessKey: b.AccessKey,
	}
	for from, to := range map[string]*string{b.CA: &storage.CA, b.SecretKeyFile: &storage.SecretKey} {
		if from == "" {
			continue
		}
		err := fs.ErrNotExist
		var data []byte
		if s.Values != nil {
			data, err = s.Values(from)
		}
		if err != nil {
			return nil, plain.Advise(fmt.Errorf("%s, for copies of etcd in S3: %w", from, err),
				"a bundle does not contain it: name the cluster file with -c, and keep the file at its path there, relative to the cluster file")
		}
		*to = strings.TrimSpace(string(data))
	}
	s.Mask.Hide(storage.SecretKey)
	return storage, nil
}

// StoredDir returns the directory of a cluster's copies in the storage, below its prefix. Each host has one below it.
func StoredDir(c *manifest.Cluster) string { return c.Metadata.Name }

//go:embed scripts/etcd-backup.sh
var etcdBackupScript string

// BackupScript returns the script that saves a snapshot, encrypted to the cluster's recipients, and keeps the newest
// ones.
func BackupScript(t *task.Host, keep int) []byte {
	c, config := t.Site.Cluster, ""
	if c.Backup.S3 != nil {
		config = s3Config
	}
	args := []string{
		Backups, strconv.Itoa(keep), cmp.Or(c.Etcd.DataDir, DefaultDataDir), host.HelperPath,
		strings.Join(c.Backup.Recipients, "\n"),
		config, path.Join(StoredDir(c), t.Name),
	}
	return task.ScriptFile(host.Script("etcd-backup.sh", etcdBackupScript, append(args, CtlArgs(t, Endpoint(t))...)...))
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
