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

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// An EtcdSnapshot is a copy of what etcd holds.
type EtcdSnapshot struct {
	Path string
	Size int64
	// SHA256 is of the whole file, in hex.
	SHA256 string
	// Host is where it was taken, Revision and Keys what etcd says of it; "" and 0 where only the file is known.
	Host     string
	Revision int64
	Keys     int
}

// A SnapshotError is a file that is no whole copy of an etcd.
type SnapshotError struct{ Path, Reason string }

// Error names the file and what is wrong with it.
func (e *SnapshotError) Error() string { return e.Path + ": " + e.Reason }

// Hint says what to do about it.
func (e *SnapshotError) Hint() string {
	return "use another copy; hosts of etcd keep theirs in " + etcdBackups + " where etcd.backup is set"
}

// ReadEtcdSnapshot looks at a copy of etcd and compares it with the checksum that etcd puts at its end: the SHA-256 of all that is
// before it, after pages of a multiple of 512 bytes.
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
		return s, &SnapshotError{path, "it is not what etcd saves, or cut off: it does not end with a checksum"}
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
		return s, &SnapshotError{path, "its checksum is wrong: it is damaged"}
	}
	_, _ = whole.Write(end)
	s.SHA256 = hex.EncodeToString(whole.Sum(nil))
	return s, nil
}

// BackupEtcd saves etcd as it is now and brings the copy to a file on this machine, which must not be there yet. It has its name
// when it is whole, compared with etcd's own checksum, and on the disk. Hosts of etcd that cannot be reached are passed over as
// long as one of them works.
func BackupEtcd(ctx context.Context, o Options, to string) (EtcdSnapshot, error) {
	var made EtcdSnapshot
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return made, fmt.Errorf("%s is there already: name another file", to)
	}
	r, err := newEtcdRun(o)
	if err != nil {
		return made, err
	}
	_, err = r.start(ctx, func(ctx context.Context) error {
		t, err := r.workingMember(inTask(ctx, "etcd-backup"))
		if err != nil {
			return err
		}
		return r.taskOn(ctx, "etcd-backup", Task{Name: "save", Done: never, Do: func(ctx context.Context, t *Target) (err error) {
			made, err = t.saveEtcd(ctx, to)
			return err
		}}, t)
	})
	return made, err
}

// newEtcdRun prepares a run that works on the hosts of etcd and on control planes, those that can be reached.
func newEtcdRun(o Options) (*run, error) {
	if o.Cluster.WithDefaults().Etcd.Type == manifest.EtcdProvided {
		return nil, errors.New("etcd is yours (etcd.type: provided): save and restore it where it runs")
	}
	if err := distributionOf(o.Cluster).refuses(etcdCommand); err != nil {
		return nil, err
	}
	r, err := newInstall(o, savingEtcd())
	if err != nil {
		return nil, err
	}
	return r, nil
}

// never is Done of what is done whenever it is asked for.
func never(context.Context, *Target) (bool, error) { return false, nil }

// workingMember finds a host whose member works.
func (r *run) workingMember(ctx context.Context) (*Target, error) {
	var errs []error
	etcd := false
	for _, t := range r.connected(manifest.RoleEtcd) {
		certificate := t.etcdClientFiles().cert
		there, err := t.test(ctx, "test", "-e", certificate)
		if err == nil && !there {
			err = fmt.Errorf("%s has no etcd of kkbundle's: there is no %s", t.Name, certificate)
		} else if err == nil {
			etcd = true
			err = t.etcdTools(ctx)
		}
		if err == nil {
			err = t.etcdHealthy(ctx)
		}
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	if !etcd && len(errs) > 0 {
		return nil, &NoClusterError{Reason: errors.Join(errs...).Error()}
	}
	return nil, fmt.Errorf("no host has an etcd that works: %w", errors.Join(errs...))
}

// etcdTools puts etcd's tools on a host that lacks them.
func (t *Target) etcdTools(ctx context.Context) error {
	there, err := t.hasCommands(ctx, "etcdctl", "etcdutl")
	if err != nil || there {
		return err
	}
	if t.run.Bundle == nil {
		return &EtcdToolsError{Host: t.Name}
	}
	err = t.run.place(ctx, t, etcdPrograms("etcdctl", "etcdutl"), Event{Phase: "etcd", Task: "tools", Host: t.Name})
	var missing *MissingError
	if errors.As(err, &missing) {
		return &EtcdToolsError{Host: t.Name}
	}
	return err
}

// An EtcdToolsError is a host without etcdctl and etcdutl.
type EtcdToolsError struct{ Host string }

// Error names the host.
func (e *EtcdToolsError) Error() string {
	return e.Host + " has no etcdctl and etcdutl, and no bundle was given that has them"
}

// Hint says what to do about it.
func (e *EtcdToolsError) Hint() string {
	return "give the bundle that the cluster was installed from, or put both programs of etcd's release into /usr/local/bin of the hosts of etcd"
}

// etcdWork is where copies lie on hosts while they are worked with.
const etcdWork = stateDir + "/etcd-snapshot"

// saveEtcd makes a copy on the host, brings it here, and leaves nothing there.
func (t *Target) saveEtcd(ctx context.Context, to string) (made EtcdSnapshot, err error) {
	const there = etcdWork + "/saved.db"
	defer func() { err = errors.Join(err, t.command(context.WithoutCancel(ctx), "rm", "-rf", etcdWork)) }()
	if err := t.command(ctx, "rm", "-rf", etcdWork); err != nil {
		return made, err
	}
	if err := t.command(ctx, "mkdir", "-p", "-m", "0700", etcdWork); err != nil {
		return made, err
	}
	if err := t.command(ctx, append(t.etcdctlTo(t.etcdEndpoint()), "snapshot", "save", there)...); err != nil {
		return made, err
	}
	status, err := t.snapshotStatus(ctx, there)
	if err != nil {
		return made, err
	}
	out, err := t.output(ctx, "stat", "--format=%s", there)
	if err != nil {
		return made, err
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return made, fmt.Errorf("size of %s on %s: %w", there, t.Name, err)
	}
	if made, err = t.bring(ctx, there, size, to); err != nil {
		return made, err
	}
	made.Host, made.Revision, made.Keys = t.Name, status.Revision, status.Keys
	return made, nil
}

// A snapshotStatus is what etcdutl says of a copy.
type snapshotStatus struct {
	Revision int64 `json:"revision"`
	Keys     int   `json:"totalKey"`
}

// snapshotStatus has etcdutl check a copy's pages.
func (t *Target) snapshotStatus(ctx context.Context, file string) (s snapshotStatus, err error) {
	out, err := t.output(ctx, "etcdutl", "snapshot", "status", file, "--write-out=json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("what etcdutl on %s says of %s: %w", t.Name, file, err)
	}
	return s, nil
}

// bring copies a file of the host to this machine, beside its place first.
func (t *Target) bring(ctx context.Context, from string, size int64, to string) (made EtcdSnapshot, err error) {
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*") // with mode 0600
	if err != nil {
		return made, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the reason is what counts
		}
	}()
	within := &atMost{w: f, left: size}
	err = t.on.Run(withoutOutput(ctx), host.Cmd{Args: []string{"cat", "--", from}, Stdout: within})
	if err = errors.Join(err, within.err, f.Sync(), f.Close()); err != nil {
		return made, fmt.Errorf("bring %s from %s: %w", from, t.Name, err)
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

// atMost writes no more than was said before.
type atMost struct {
	w    io.Writer
	left int64
	err  error
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		a.err = errors.New("it is longer than the host said")
		return 0, a.err
	}
	n, err := a.w.Write(p)
	if err != nil {
		a.err = err
	}
	return n, err
}
