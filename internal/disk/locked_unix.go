//go:build unix

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sweep removes the abandoned files in dir that no running process has locked.
func Sweep(dir string, abandoned func(fs.FileInfo) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || !abandoned(info) {
			continue // already removed
		}
		f, err := os.OpenFile(filepath.Join(dir, info.Name()), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // another process removed it first, or its owner is not us
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.Remove(f.Name())
		}
		if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// CreateLocked calls create, which makes a file under a new name, until it has locked one. A Sweep of another writer
// may remove the file between creation and lock.
func CreateLocked(create func() (*os.File, error)) (*os.File, error) {
	for {
		f, err := create()
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close(), os.Remove(f.Name()))
		}
		if err == nil {
			there, err := IsAt(f, f.Name())
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			if there {
				return f, nil
			}
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// IsAt reports whether name still leads to f.
func IsAt(f *os.File, name string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(mine, there), nil
}
