// Package dirlock is the lock of a registry's directory, whose holder may change content.
package dirlock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// File is the name of the file in a registry's directory whose flock permits changing content. Its presence marks a
// registry's directory.
const File = "kkbundle.lock"

// A LockedError means another process may write in a registry's directory.
type LockedError struct {
	Dir string
	PID int // 0 if unknown
}

// Error implements error.
func (e *LockedError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s serves %s and may write there", who, e.Dir)
}

// Hint returns the remedy.
func (e *LockedError) Hint() string {
	return "stop that registry first, or run it with --read-only meanwhile"
}

// A Lock lasts until the process ends, even if it is killed.
type Lock struct{ file *os.File }

// Acquire locks a directory. The error is a *LockedError if another process holds the lock.
func Acquire(dir string) (*Lock, error) {
	// Garbage is collected by root in a directory of the registry's user, whose link would lead the truncation
	// elsewhere.
	f, err := os.OpenFile(filepath.Join(dir, File), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		const digits = 20
		text, _ := io.ReadAll(io.LimitReader(f, digits)) // optional: without it the process is unknown
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, errors.Join(&LockedError{Dir: dir, PID: pid}, f.Close())
	}
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	return &Lock{f}, nil
}

// Release unlocks explicitly: a child process being started may hold a copy of the descriptor, and with it the lock.
func (l *Lock) Release() error {
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}
