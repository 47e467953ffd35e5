package etcdops

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Snapshot is a snapshot of etcd in a file.
type Snapshot struct {
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
	return plain.Advise(errors.New(path+": "+reason), "use another copy; hosts of etcd keep theirs in "+etcd.Backups+
		" where etcd.backup is set")
}

// ReadSnapshot reads a snapshot, decrypts it with the identities if it is an age file, and verifies the checksum at
// its end: the SHA-256 of the content before it, which has pages of a multiple of 512 bytes. Size and digest are of
// the content. https://github.com/etcd-io/etcd/blob/v3.6.5/etcdutl/snapshot/v3_snapshot.go
func ReadSnapshot(path string, identities ...age.Identity) (Snapshot, error) {
	f, err := openSnapshot(path, identities)
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = f.Close() }()
	sum := newSnapshotSum()
	if _, err := io.Copy(sum, f); err != nil {
		return Snapshot{}, fmt.Errorf("read %s: %w", path, err)
	}
	return sum.snapshot(path)
}

// A snapshotSum digests a snapshot as it passes.
type snapshotSum struct {
	whole, body hash.Hash
	end         []byte // the last bytes, which are not in body
	size        int64
}

func newSnapshotSum() *snapshotSum { return &snapshotSum{whole: sha256.New(), body: sha256.New()} }

// Write implements io.Writer.
func (s *snapshotSum) Write(p []byte) (int, error) {
	_, _ = s.whole.Write(p)
	s.size += int64(len(p))
	all := append(s.end, p...)
	if extra := len(all) - sha256.Size; extra > 0 {
		_, _ = s.body.Write(all[:extra])
		all = all[extra:]
	}
	s.end = slices.Clone(all)
	return len(p), nil
}

// snapshot returns the snapshot that has passed, if it was whole.
func (s *snapshotSum) snapshot(path string) (Snapshot, error) {
	const sector = 512
	made := Snapshot{Path: path, Size: s.size, SHA256: hex.EncodeToString(s.whole.Sum(nil))}
	body := s.size - sha256.Size
	if body <= 0 || body%sector != 0 {
		return made, incomplete(path, "not a snapshot of etcd, or truncated: the checksum at its end is missing")
	}
	if !bytes.Equal(s.end, s.body.Sum(nil)) {
		return made, incomplete(path, "damaged: the checksum does not match")
	}
	return made, nil
}

// ageMagic begins every age file.
const ageMagic = "age-encryption.org/v1\n"

// A snapshotFile reads a snapshot's content from a file.
type snapshotFile struct {
	io.Reader
	io.Closer
}

// openSnapshot opens the content of a snapshot. Nothing decrypted is written to a disk.
func openSnapshot(path string, identities []age.Identity) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), incomplete(path, "not a snapshot of etcd: not a regular file"))
	}
	in := bufio.NewReader(f)
	if head, _ := in.Peek(len(ageMagic)); string(head) != ageMagic {
		return snapshotFile{in, f}, nil
	}
	if len(identities) == 0 {
		return nil, errors.Join(f.Close(),
			incomplete(path, "encrypted: name the file of a private key with --identity"))
	}
	content, err := age.Decrypt(in, identities...)
	if err != nil {
		return nil, errors.Join(f.Close(), incomplete(path, "not decrypted: "+err.Error()))
	}
	return snapshotFile{content, f}, nil
}

// Backup takes a snapshot of etcd and copies it to a new file on this machine. The file gets its name once its
// checksum is verified and it is synced to the disk. Unreachable hosts are skipped if one member works.
func Backup(ctx context.Context, o engine.Options, to string) (Snapshot, error) {
	var made Snapshot
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return made, fmt.Errorf("%s already exists: name another file", to)
	}
	r, err := newRun(o)
	if err != nil {
		return made, err
	}
	_, err = r.Start(ctx, func(ctx context.Context) error {
		t, err := WorkingMember(task.InTask(ctx, "etcd-backup"), r)
		if err != nil {
			return err
		}
		return r.TaskOn(ctx, "etcd-backup", task.Task{
			Name: "save", Done: task.Never,
			Do: func(ctx context.Context, t *task.Host) (err error) {
				made, err = Save(ctx, t, to)
				return err
			},
		}, t)
	})
	return made, err
}

// newRun prepares a run on the reachable hosts of etcd and control planes.
func newRun(o engine.Options) (*engine.Run, error) {
	if o.Cluster.WithDefaults().Etcd.Type == manifest.EtcdProvided {
		return nil, errors.New("etcd is yours (etcd.type: provided): save and restore it where it runs")
	}
	if err := plan.Distribution(o.Cluster).Refuses(task.EtcdCommand); err != nil {
		return nil, err
	}
	return begin.NewFitting(o, engine.SavingEtcd())
}

// WorkingMember returns a host with a working member.
func WorkingMember(ctx context.Context, r *engine.Run) (*task.Host, error) {
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
		return nil, &begin.NoClusterError{Reason: errors.Join(errs...).Error()}
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
	err = t.Site.Place(ctx, t, etcd.Programs("etcdctl", "etcdutl"),
		task.Event{Phase: "etcd", Task: "tools", Host: t.Name})
	if _, ok := errors.AsType[*task.MissingError](err); ok {
		return lacking
	}
	return err
}

// Save takes a snapshot on the host, copies it to this machine, and deletes it on the host.
func Save(ctx context.Context, t *task.Host, to string) (made Snapshot, err error) {
	const there = marks.Snapshot + "/saved.db"
	defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-rf", marks.Snapshot)) }()
	if err := t.Run(ctx, "rm", "-rf", marks.Snapshot); err != nil {
		return made, err
	}
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0700", marks.Snapshot); err != nil {
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
func bring(ctx context.Context, t *task.Host, from string, size int64, to string) (made Snapshot, err error) {
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*") // with mode 0600
	if err != nil {
		return made, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error matters more
		}
	}()
	out, finish := io.Writer(f), func() error { return nil }
	if recipients := t.Site.Cluster.Backup.Recipients; len(recipients) > 0 {
		sealed, sealErr := node.NewEncrypter(recipients, f)
		if err = sealErr; err != nil {
			return made, errors.Join(err, f.Close())
		}
		out, finish = sealed, sealed.Close
	}
	sum := newSnapshotSum()
	within := &atMost{w: io.MultiWriter(out, sum), left: size}
	err = t.Conn.Run(task.WithoutOutput(ctx), host.Cmd{Args: []string{"cat", "--", from}, Stdout: within})
	if err = errors.Join(err, within.err, finish(), f.Sync(), f.Close()); err != nil {
		return made, fmt.Errorf("copy %s from %s: %w", from, t.Name, err)
	}
	if made, err = sum.snapshot(to); err != nil {
		return made, err
	}
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
