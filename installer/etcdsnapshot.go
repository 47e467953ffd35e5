package installer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// An EtcdSnapshot is a snapshot of etcd in a file.
type EtcdSnapshot struct {
	Path string
	Size int64
	// SHA256 is of the whole file, in hex.
	SHA256 string
	// Host took the snapshot; etcd counted Revision and Keys. They are "" and 0 if only the file is known.
	Host     string
	Revision int64
	Keys     int
}

// incomplete returns an error for a file that is no complete snapshot of etcd.
func incomplete(path, reason string) error {
	return plain.Advise(errors.New(path+": "+reason), "use another copy; hosts of etcd keep theirs in "+etcd.Backups+" where etcd.backup is set")
}

// ReadEtcdSnapshot reads a snapshot and verifies the checksum at its end: the SHA-256 of the content before it, which
// has pages of a multiple of 512 bytes.
// https://github.com/etcd-io/etcd/blob/v3.6.5/etcdutl/snapshot/v3_snapshot.go
func ReadEtcdSnapshot(path string) (EtcdSnapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return EtcdSnapshot{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return EtcdSnapshot{}, err
	}
	s := EtcdSnapshot{Path: path, Size: info.Size()}
	const sector = 512
	body := s.Size - sha256.Size
	if !info.Mode().IsRegular() || body <= 0 || body%sector != 0 {
		return s, incomplete(path, "not a snapshot of etcd, or truncated: the checksum at its end is missing")
	}
	whole, content := sha256.New(), sha256.New()
	if _, err := io.CopyN(io.MultiWriter(whole, content), f, body); err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	end, err := io.ReadAll(io.LimitReader(f, sha256.Size+1))
	if err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	if !bytes.Equal(end, content.Sum(nil)) {
		return s, incomplete(path, "damaged: the checksum does not match")
	}
	_, _ = whole.Write(end)
	s.SHA256 = hex.EncodeToString(whole.Sum(nil))
	return s, nil
}

// BackupEtcd takes a snapshot of etcd and copies it to a new file on this machine. The file gets its name once its
// checksum is verified and it is synced to the disk. Unreachable hosts are skipped if one member works.
func BackupEtcd(ctx context.Context, o engine.Options, to string) (EtcdSnapshot, error) {
	var made EtcdSnapshot
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return made, fmt.Errorf("%s already exists: name another file", to)
	}
	r, err := newEtcdRun(o)
	if err != nil {
		return made, err
	}
	_, err = r.Start(ctx, func(ctx context.Context) error {
		t, err := workingMember(task.InTask(ctx, "etcd-backup"), r)
		if err != nil {
			return err
		}
		return r.TaskOn(ctx, "etcd-backup", task.Task{Name: "save", Done: never, Do: func(ctx context.Context, t *task.Host) (err error) {
			made, err = saveEtcd(ctx, t, to)
			return err
		}}, t)
	})
	return made, err
}

// newEtcdRun prepares a run on the reachable hosts of etcd and control planes.
func newEtcdRun(o engine.Options) (*engine.Run, error) {
	if o.Cluster.WithDefaults().Etcd.Type == manifest.EtcdProvided {
		return nil, errors.New("etcd is yours (etcd.type: provided): save and restore it where it runs")
	}
	if err := distributionOf(o.Cluster).Refuses(task.EtcdCommand); err != nil {
		return nil, err
	}
	return newInstall(o, engine.SavingEtcd())
}

// never is the Done of tasks that always run.
func never(context.Context, *task.Host) (bool, error) { return false, nil }

// workingMember returns a host with a working member.
func workingMember(ctx context.Context, r *engine.Run) (*task.Host, error) {
	var errs []error
	isEtcd := false
	for _, t := range r.Connected(manifest.RoleEtcd) {
		certificate := etcd.ClientFiles(t).Cert
		there, err := t.Test(ctx, "test", "-e", certificate)
		if err == nil && !there {
			err = fmt.Errorf("%s has no etcd of kkbundle: %s is missing", t.Name, certificate)
		} else if err == nil {
			isEtcd = true
			err = etcdTools(ctx, t)
		}
		if err == nil {
			err = etcd.CheckHealth(ctx, t)
		}
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	if !isEtcd && len(errs) > 0 {
		return nil, &NoClusterError{Reason: errors.Join(errs...).Error()}
	}
	return nil, fmt.Errorf("no host has a working etcd: %w", errors.Join(errs...))
}

// etcdTools installs etcd's tools on a host that lacks them.
func etcdTools(ctx context.Context, t *task.Host) error {
	there, err := t.HasCommands(ctx, "etcdctl", "etcdutl")
	if err != nil || there {
		return err
	}
	lacking := plain.Advise(errors.New(t.Name+" lacks etcdctl and etcdutl, and no bundle with them was given"),
		"give the bundle that the cluster was installed from, or put both programs of etcd's release into /usr/local/bin of the hosts of etcd")
	if t.Site.Bundle == nil {
		return lacking
	}
	err = t.Site.Place(ctx, t, etcd.Programs("etcdctl", "etcdutl"), task.Event{Phase: "etcd", Task: "tools", Host: t.Name})
	if _, ok := errors.AsType[*task.MissingError](err); ok {
		return lacking
	}
	return err
}

// etcdWork holds snapshots on hosts during a backup or restore.
const etcdWork = task.StateDir + "/etcd-snapshot"

// saveEtcd takes a snapshot on the host, copies it to this machine, and deletes it on the host.
func saveEtcd(ctx context.Context, t *task.Host, to string) (made EtcdSnapshot, err error) {
	const there = etcdWork + "/saved.db"
	defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-rf", etcdWork)) }()
	if err := t.Run(ctx, "rm", "-rf", etcdWork); err != nil {
		return made, err
	}
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0700", etcdWork); err != nil {
		return made, err
	}
	if err := t.Run(ctx, append(etcd.CtlArgs(t, etcd.Endpoint(t)), "snapshot", "save", there)...); err != nil {
		return made, err
	}
	status, err := statusOf(ctx, t, there)
	if err != nil {
		return made, err
	}
	out, err := t.Output(ctx, "stat", "--format=%s", there)
	if err != nil {
		return made, err
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return made, fmt.Errorf("size of %s on %s: %w", there, t.Name, err)
	}
	if made, err = bring(ctx, t, there, size, to); err != nil {
		return made, err
	}
	made.Host, made.Revision, made.Keys = t.Name, status.Revision, status.Keys
	return made, nil
}

// A snapshotStatus is etcdutl's description of a snapshot.
type snapshotStatus struct {
	Revision int64 `json:"revision"`
	Keys     int   `json:"totalKey"`
}

// statusOf has etcdutl check a snapshot's pages.
func statusOf(ctx context.Context, t *task.Host, file string) (s snapshotStatus, err error) {
	out, err := t.Output(ctx, "etcdutl", "snapshot", "status", file, "--write-out=json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("output of etcdutl on %s for %s: %w", t.Name, file, err)
	}
	return s, nil
}

// bring copies a file of the host to this machine, under a temporary name first.
func bring(ctx context.Context, t *task.Host, from string, size int64, to string) (made EtcdSnapshot, err error) {
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*") // with mode 0600
	if err != nil {
		return made, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error matters more
		}
	}()
	within := &atMost{w: f, left: size}
	err = t.Conn.Run(task.WithoutOutput(ctx), host.Cmd{Args: []string{"cat", "--", from}, Stdout: within})
	if err = errors.Join(err, within.err, f.Sync(), f.Close()); err != nil {
		return made, fmt.Errorf("copy %s from %s: %w", from, t.Name, err)
	}
	if made, err = ReadEtcdSnapshot(f.Name()); err != nil {
		return made, err
	}
	made.Path = to
	if err = os.Link(f.Name(), to); err != nil { // unlike a rename, it replaces nothing
		return made, err
	}
	if err = os.Remove(f.Name()); err != nil {
		return made, err
	}
	return made, syncDir(filepath.Dir(to))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// An atMost writes no more bytes than expected.
type atMost struct {
	w    io.Writer
	left int64
	err  error
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		a.err = errors.New("the file is longer than the host reported")
		return 0, a.err
	}
	n, err := a.w.Write(p)
	if err != nil {
		a.err = err
	}
	return n, err
}
