package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// Layout of a cache's directory: for each encoder a directory of blobs and parts, and a list of the current users.
//
//	lock                        held briefly while an entry's name changes
//	run/<any>                   one for each open Cache, locked while it is open
//	<encoder>/encoder           the encoder's name; <encoder> is the beginning of its sha256
//	<encoder>/sha256/ab/<hex>   an entry
//	<encoder>/part/<name>       a part: an incomplete blob
//	encoders                    which encoder made a gzip stream, see package encoders
//
// A GC removes entries and parts, nothing else.
//
// The directory is this user's own, so nobody else can put links into it. Links that are there anyway are not followed.
//
// An entry's modification time is the time of its last use. A Cache sets it once, when it is first asked for the entry.
// A GC keeps everything used since the oldest open Cache was opened. So a build keeps the entries it relies on, however
// long it takes, and GC need not wait for it. Both hold the lock between check and action, shared and exclusively.
const (
	lockName    = "lock"
	runsDir     = "run"
	encoderFile = "encoder"
	blobsDir    = "sha256"
	partsDir    = "part"
)

// usage is one use of a cache's directory.
type usage struct {
	root     string
	run      *os.File  // in runsDir, locked; nil if no other process can know the directory
	since    time.Time // when the use began, by the file system's clock
	begun    time.Time // the same, by this machine's clock
	volatile bool      // the data need not survive the process
}

// begin registers this process as a user of the directory.
func (u *usage) begin() error {
	if err := checkOwn(u.root); err != nil {
		return err
	}
	dir := filepath.Join(u.root, runsDir)
	if err := makeDir(dir); err != nil {
		return err
	}
	if err := disk.Sweep(dir, func(fs.FileInfo) bool { return true }); err != nil { // left by killed processes
		return err
	}
	f, err := disk.CreateLocked(func() (*os.File, error) { return os.CreateTemp(dir, "") })
	if err != nil {
		return err
	}
	u.run = f
	info, err := f.Stat() // time by the file system's clock, comparable with files written from now on
	if err != nil {
		return err
	}
	u.since, u.begun = info.ModTime(), time.Now()
	return nil
}

// checkOwn makes a cache's directory, or refuses one in which others write: their files would be taken for ours.
func checkOwn(root string) error {
	dir, err := disk.OpenOwn(root)
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok {
		return plain.Advise(fmt.Errorf("the cache's directory %w", foreign),
			"name a directory of your own with --cache or KKBUNDLE_CACHE, or a new directory below it (with sudo, -H makes HOME that of root); if only you have used this one, make it yours: chown, chmod go-w")
	}
	if errors.Is(err, fs.ErrPermission) {
		return plain.Advise(fmt.Errorf("the cache's directory: %w", err),
			"it or a directory above may be another user's, as after a run with sudo: make it yours (chown -R), or name a directory of your own with --cache or KKBUNDLE_CACHE")
	}
	if err != nil {
		return err
	}
	return dir.Close()
}

// makeDir makes a directory in the cache, or finds it there. A link in its place is an error.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory: remove it", path)
	}
	return err
}

// ahead reports whether a time lies in the future of the file system's clock. Such an entry was used when a clock was
// wrong.
func (u *usage) ahead(t time.Time) bool {
	const tolerance = time.Minute // the two clocks may differ in speed
	return t.After(u.since.Add(time.Since(u.begun) + tolerance))
}

// Close ends the use of the directory. Uncommitted blobs are kept for a later Begin.
func (u *usage) Close() error {
	if u.run == nil {
		return nil
	}
	f := u.run
	u.run = nil
	return errors.Join(os.Remove(f.Name()), f.Close())
}

// use records that this run uses e. It fails with fs.ErrNotExist if a GC has removed the entry.
func (u *usage) use(e *entry) error {
	if used := e.info.ModTime(); u.run == nil || !used.Before(u.since) && !u.ahead(used) {
		return nil
	}
	return u.locked(unix.LOCK_SH, func() error {
		there, err := disk.IsAt(e.f, e.path)
		if err != nil {
			return err
		}
		if !there {
			return fs.ErrNotExist
		}
		return e.touch()
	})
}

// touch sets the time of the last use by the file system's clock, which may differ from this machine's on a network
// file system.
func (e *entry) touch() error {
	if err := touch(e.path); err != nil {
		return fmt.Errorf("record the use of cached blob %s: %w", e.sum.Digest(), err)
	}
	return nil
}

func touch(path string) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, unix.AT_SYMLINK_NOFOLLOW)
}

// A site is the place of an entry: its cache and its path.
type site struct{ root, path string }

func (s site) locked(how int, f func() error) error { return locked(s.root, how, f) }

func (u *usage) locked(how int, f func() error) error { return locked(u.root, how, f) }

// locked runs f, which must be short, while holding the cache's lock, shared or exclusively.
func locked(root string, how int, f func() error) error {
	lock, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock the cache: %w", err)
	}
	defer lock.Close()
	for {
		err := unix.Flock(int(lock.Fd()), how)
		if err == nil {
			return f()
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock the cache: %w", err)
		}
	}
}

// drop removes the damaged file, unless another file has replaced it.
func (e *EntryError) drop() error {
	return e.site.locked(unix.LOCK_EX, func() error {
		info, err := os.Lstat(e.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.file != nil && !os.SameFile(info, e.file):
			return nil
		}
		return os.RemoveAll(e.Path)
	})
}

// abandoned reports whether a part is too old to be resumed.
func (u *usage) abandoned(part fs.FileInfo) bool {
	return isOwn(part.Name()) || u.since.Sub(part.ModTime()) > partLife
}

// running returns the start of the oldest use that is still running, including u's own, and reports whether there are
// others.
func (u *usage) running() (oldest time.Time, others bool, err error) {
	dir, oldest := filepath.Join(u.root, runsDir), u.since
	entries, err := os.ReadDir(dir)
	if err != nil {
		return oldest, false, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || path == u.run.Name() {
			continue // ended, or u itself
		}
		f, err := os.Open(path)
		if err != nil {
			continue // ended
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			others = true
			switch began := info.ModTime(); {
			case u.ahead(began): // the clock was set back since: no entry's time tells whether that run uses it
				oldest = time.Time{}
			case began.Before(oldest):
				oldest = began
			}
		}
		if err := f.Close(); err != nil {
			return oldest, others, err
		}
	}
	return oldest, others, nil
}
