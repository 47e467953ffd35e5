package task

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/disk"
)

// Names in the work directory.
const (
	CACertFile         = "pki/ca.crt"
	CAKeyFile          = "pki/ca.key"
	RegistryCertFile   = "pki/registry.crt"
	RegistryKeyFile    = "pki/registry.key"
	RegistryPassFile   = "registry/password"
	RegistryHashFile   = "registry/htpasswd"
	PushPassFile       = "registry/push-password"
	PushHashFile       = "registry/push-htpasswd"
	RegistrySecretFile = "registry/http-secret"
	HarborAdminFile    = "registry/harbor-admin"
	HarborDatabaseFile = "registry/harbor-database"
	HarborRobotFile    = "registry/harbor-robot"
	AdminConfFile      = "admin.conf"
	lockFile           = "lock"
	LogFile            = "install.log"
)

// A WorkDir is the directory of one cluster on the deploy machine. It holds secrets, which a run creates again in an
// empty directory, and admin.conf, which a run fetches again.
type WorkDir struct {
	path     string
	Root     *os.Root
	volatile map[string][]byte // new files of a dry run
	Making   sync.Mutex        // guards the creation of secrets
	held     *os.File          // the locked lock file
	passing  bool              // a dry run made the directory, and removes it
}

// OpenWorkDir opens or creates a work directory. It holds private keys, so it must belong to the user and be closed to
// others. A dry run leaves no new one behind.
func OpenWorkDir(path string, dryRun bool) (*WorkDir, error) {
	_, missing := os.Stat(path)
	root, err := disk.OpenPrivate(path)
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok {
		return nil, fmt.Errorf("work directory %w, but it holds private keys: make it yours with mode 700, or use another directory", foreign)
	}
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	w := &WorkDir{path: path, Root: root, passing: dryRun && errors.Is(missing, fs.ErrNotExist)}
	if dryRun {
		w.volatile = map[string][]byte{}
	}
	return w, nil
}

// Lock excludes other runs until Close; the error is a *LockedError if another run holds the lock. Two runs would
// create two certificate authorities and fetch each other's credentials.
func (w *WorkDir) Lock(o Owner) (err error) {
	f, err := w.Root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		data, _ := w.Read(lockFile) // without data, the error names no owner
		return errors.Join(NewLockedError("the work directory "+w.path, data), f.Close())
	}
	if err == nil && !w.named(f) { // a dry run has removed it since it was opened
		return errors.Join(NewLockedError("the work directory "+w.path, nil), f.Close())
	}
	w.held = f
	text, _ := json.Marshal(o) // an Owner always encodes
	if err = errors.Join(err, f.Truncate(0)); err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err != nil {
		return fmt.Errorf("work directory: lock: %w", err)
	}
	return nil
}

// named reports whether the lock file still has its name.
func (w *WorkDir) named(f *os.File) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	name, err := w.Root.Stat(lockFile)
	return err == nil && os.SameFile(have, name)
}

// Join returns the path of a file in the directory.
func (w *WorkDir) Join(name string) string { return filepath.Join(w.path, name) }

// Close releases the lock.
func (w *WorkDir) Close() error {
	if w.held == nil {
		return w.Root.Close()
	}
	if w.passing { // best effort: a directory with files stays
		_ = w.Root.Remove(lockFile)
		_ = os.Remove(w.path)
	}
	// A process that is just starting may still have a copy of the descriptor, so closing alone would keep the lock.
	return errors.Join(unix.Flock(int(w.held.Fd()), unix.LOCK_UN), w.held.Close(), w.Root.Close())
}

// Read returns a file; the error is fs.ErrNotExist if there is none.
func (w *WorkDir) Read(name string) ([]byte, error) {
	if data, ok := w.volatile[name]; ok {
		return data, nil
	}
	f, err := w.Root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile))
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	return data, nil
}

// Write replaces a file atomically.
func (w *WorkDir) Write(name string, data []byte) error {
	if w.volatile != nil {
		w.volatile[name] = data
		return nil
	}
	if err := w.replace(name, data); err != nil {
		return fmt.Errorf("work directory: write %s: %w", name, err)
	}
	return nil
}

func (w *WorkDir) replace(name string, data []byte) error {
	if err := w.Root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return disk.WriteFileIn(w.Root, name, 0o600, data)
}

// Remove removes a file, if it exists.
func (w *WorkDir) Remove(name string) error {
	if err := w.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("work directory: remove %s: %w", name, err)
	}
	return nil
}

// Keep returns a file. If there is none, it writes the data that create returns.
func (w *WorkDir) Keep(name string, create func() ([]byte, error)) ([]byte, error) {
	data, err := w.Read(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = create(); err != nil {
		return nil, err
	}
	return data, w.Write(name, data)
}

// Secret returns the random secret of 160 bits in a file, and creates it first if necessary.
func (w *WorkDir) Secret(name string) (string, error) {
	data, err := w.Keep(name, func() ([]byte, error) { return []byte(RandomHex(20)), nil })
	return string(data), err
}

// OpenLog opens install.log for appending; a dry run has none.
func (w *WorkDir) OpenLog() (io.WriteCloser, error) {
	if w.volatile != nil {
		return Discard{}, nil
	}
	f, err := w.Root.OpenFile(LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	return f, nil
}

// Discard is a log that keeps nothing.
type Discard struct{}

// Write discards p.
func (Discard) Write(p []byte) (int, error) { return len(p), nil }

// Close does nothing.
func (Discard) Close() error { return nil }

// RandomHex returns random bytes as hexadecimal digits.
func RandomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: https://pkg.go.dev/crypto/rand#Read
	return hex.EncodeToString(b)
}
