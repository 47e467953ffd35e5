//go:build unix

package disk

import (
	"errors"

	"golang.org/x/sys/unix"
)

// writable returns why dir is not writable: permissions, or a read-only file system.
func writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// freeSpace returns the file system that dir lies on and the bytes that this user may still write there.
func freeSpace(dir string) (device uint64, free int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	return uint64(st.Dev), int64(fs.Bavail) * int64(fs.Bsize), nil //nolint:unconvert // the types differ by system
}

// IsFull reports whether an error says that a disk is full, or this user's share of it.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
