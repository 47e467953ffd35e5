package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// A Scratch is a cache for one build: a new directory that no other process uses and that Close removes. The next
// OpenScratch or SweepScratch in the same parent removes the directory of a killed process.
type Scratch struct {
	*Cache
	lock *os.File // beside the directory, so that a sweep never meets a directory without a lock
}

const (
	scratchPrefix = ".kkbundle-scratch-"
	scratchLock   = ".lock"
)

// OpenScratch creates a scratch directory in parent, for blobs compressed at level.
func OpenScratch(parent string, level format.Level) (*Scratch, error) {
	if err := SweepScratch(parent); err != nil {
		return nil, err
	}
	lock, err := disk.CreateLocked(func() (*os.File, error) {
		return os.CreateTemp(parent, scratchPrefix+"*"+
			scratchLock)
	})
	if err != nil {
		return nil, fmt.Errorf("make scratch space: %w", err)
	}
	s := &Scratch{lock: lock}
	dir := strings.TrimSuffix(lock.Name(), scratchLock)
	if s.Cache, err = newCache(dir, level); err == nil {
		s.volatile = true
		if err = os.Mkdir(dir, 0o700); err == nil { // nothing is made in a directory of somebody else
			err = s.makeDirs()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make scratch space: %w", errors.Join(err, removeScratch(lock)))
	}
	return s, nil
}

// Dir returns a directory for other files of the build, which Close removes, too.
func (s *Scratch) Dir() string { return strings.TrimSuffix(s.lock.Name(), scratchLock) }

// Temporary reports whether the cache is a Scratch, for one build.
func (c *Cache) Temporary() bool { return c.volatile }

// Close removes the scratch space.
func (s *Scratch) Close() error {
	if s.lock == nil {
		return nil
	}
	lock := s.lock
	s.lock = nil
	if err := removeScratch(lock); err != nil {
		return fmt.Errorf("remove scratch space: %w", err)
	}
	return nil
}

// removeScratch removes a directory, then the held lock file beside it.
func removeScratch(lock *os.File) error {
	err := os.RemoveAll(strings.TrimSuffix(lock.Name(), scratchLock))
	if err == nil {
		err = os.Remove(lock.Name())
	}
	return errors.Join(err, lock.Close())
}

// SweepScratch removes the scratch space of killed processes in a directory.
func SweepScratch(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("look for old scratch space: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), scratchPrefix) ||
			!strings.HasSuffix(e.Name(), scratchLock) {
			continue
		}
		if info, err := e.Info(); err != nil || !disk.Ours(info) {
			continue // owned by another user, whose directory root leaves alone; or already removed
		}
		lock, err := os.OpenFile(filepath.Join(parent, e.Name()), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // already removed
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			err = lock.Close() // in use
		} else {
			err = removeScratch(lock)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old scratch space: %w", err)
		}
	}
	return nil
}

// A FullError means the disk of the scratch space is full, or that of a bundle whose blobs come ahead of the writer.
type FullError struct {
	Dir     string
	What    string // on the disk: "the scratch space DIR"
	Options string // of the command, with which another disk is chosen
	Err     error
}

// Error names the remedy.
func (e *FullError) Error() string {
	return fmt.Sprintf("the disk of %s is full: make room there, or choose another disk with %s, and run again: %v",
		e.What, e.Options, e.Err)
}

// FullDisk is Error, for callers that would otherwise advise on a cache.
func (e *FullError) FullDisk() string { return e.Error() }

// Unwrap returns the system's error.
func (e *FullError) Unwrap() error { return e.Err }

// NewFullError returns an error if err says that the disk of temporary files in dir is full, and otherwise nil.
func NewFullError(dir string, err error) error {
	if disk.IsFull(err) {
		return &FullError{Dir: dir, What: "the scratch space " + dir, Options: "-o or $TMPDIR", Err: err}
	}
	return nil
}

// failed wraps err with the failed action, and names a full disk.
func (u *usage) failed(what string, err error) error {
	if full := NewFullError(filepath.Dir(u.root), err); u.volatile && full != nil {
		return full
	}
	return fmt.Errorf("%s: %w", what, err)
}
