package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// What a cache's directory holds: a directory of blobs and unfinished blobs for each encoder, and who is using them.
//
//	lock                        locked for moments, by whoever changes what an entry's name leads to
//	run/<any>                   one for each Cache that is open, locked while it is
//	<encoder>/encoder           the encoder's name; <encoder> is the beginning of its sha256
//	<encoder>/sha256/ab/<hex>   an entry
//	<encoder>/part/<name>       the beginning of one
//
// An entry's time of change is that of its last use. A Cache sets it, once, when it is asked for an entry, and a gc leaves
// alone what was used since the oldest Cache that is open was opened: so a build keeps what it counts on, however long it
// takes, and gc need not wait for it. Both hold the lock between looking and acting, shared and exclusively.
const (
	lockName    = "lock"
	runsDir     = "run"
	encoderFile = "encoder"
	blobsDir    = "sha256"
	partsDir    = "part"
)

// cacheUse is one use of a cache's directory.
type cacheUse struct {
	root     string
	run      *os.File  // in runsDir, locked; nil if nobody else can know of the directory
	since    time.Time // when the use began
	volatile bool      // nothing has to survive the process
}

// begin says that this process uses the directory from now on.
func (u *cacheUse) begin() error {
	dir := filepath.Join(u.root, runsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := sweep(dir, func(fs.FileInfo) bool { return true }); err != nil { // what killed processes left
		return err
	}
	f, err := createLocked(func() (*os.File, error) { return os.CreateTemp(dir, "") })
	if err != nil {
		return err
	}
	u.run = f
	info, err := f.Stat() // the file system's clock, as that of what is written from now on
	if err != nil {
		return err
	}
	u.since = info.ModTime()
	return nil
}

// Close says that the process no longer uses the directory. What was not committed is kept for a later Begin.
func (u *cacheUse) Close() error {
	if u.run == nil {
		return nil
	}
	f := u.run
	u.run = nil
	return errors.Join(os.Remove(f.Name()), f.Close())
}

// use notes that e is used in this run. It fails with fs.ErrNotExist where a gc was faster.
func (u *cacheUse) use(e *cacheEntry) error {
	if u.run == nil || !e.info.ModTime().Before(u.since) {
		return nil
	}
	return u.locked(unix.LOCK_SH, func() error {
		there, err := isAt(e.f, e.path)
		if err != nil {
			return err
		}
		if !there {
			return fs.ErrNotExist
		}
		return e.touch()
	})
}

// touch sets the time of the last use.
func (e *cacheEntry) touch() error {
	if err := os.Chtimes(e.path, time.Time{}, time.Now()); err != nil {
		return fmt.Errorf("note that the cached blob %s is used: %w", e.sum.digest(), err)
	}
	return nil
}

// A cacheSite is where an entry lies, and in which cache.
type cacheSite struct{ root, path string }

func (s cacheSite) locked(how int, f func() error) error { return locked(s.root, how, f) }

func (u *cacheUse) locked(how int, f func() error) error { return locked(u.root, how, f) }

// locked runs f, which must be short, with the cache's lock held, shared or exclusively.
func locked(root string, how int, f func() error) error {
	lock, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR|os.O_CREATE, 0o600)
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

// drop removes the damaged file, unless another took its place.
func (e *CacheError) drop() error {
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

// running returns when the oldest use that goes on began, u's own being one, and whether there are others.
func (u *cacheUse) running() (oldest time.Time, others bool, err error) {
	dir, oldest := filepath.Join(u.root, runsDir), u.since
	entries, err := os.ReadDir(dir)
	if err != nil {
		return oldest, false, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || path == u.run.Name() {
			continue // it has ended, or is this one
		}
		f, err := os.Open(path)
		if err != nil {
			continue // it has ended
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			others = true
			if info.ModTime().Before(oldest) {
				oldest = info.ModTime()
			}
		}
		if err := f.Close(); err != nil {
			return oldest, others, err
		}
	}
	return oldest, others, nil
}
