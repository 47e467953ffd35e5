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
	"syscall"

	"golang.org/x/sys/unix"
)

// Names in the work directory.
const (
	CACertFile         = "pki/ca.crt"
	caKeyFile          = "pki/ca.key"
	RegistryCertFile   = "pki/registry.crt"
	RegistryKeyFile    = "pki/registry.key"
	RegistryPassFile   = "registry/password"
	RegistryHashFile   = "registry/htpasswd"
	RegistrySecretFile = "registry/http-secret"
	HarborAdminFile    = "registry/harbor-admin"
	HarborDatabaseFile = "registry/harbor-database"
	HarborRobotFile    = "registry/harbor-robot"
	AdminConfFile      = "admin.conf"
	lockFile           = "lock"
	LogFile            = "install.log"
)

// A WorkDir is the directory on the deploy machine that belongs to one cluster: what only exists there is its secrets,
// which a lost directory makes anew, and admin.conf, which is fetched again.
type WorkDir struct {
	path string
	Root *os.Root
	// volatile keeps new files in memory, for dry runs.
	volatile map[string][]byte
	// making guards the making of secrets.
	Making sync.Mutex
	// held is the locked lock file.
	held *os.File
}

// OpenWorkDir opens or makes a work directory. It must not be open to others, nor belong to them, because it has private
// keys.
func OpenWorkDir(path string, dryRun bool) (*WorkDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	w := &WorkDir{path: path, Root: root}
	if err := w.check(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	if dryRun {
		w.volatile = map[string][]byte{}
	}
	return w, nil
}

// check looks at what was opened, and not at its name again.
func (w *WorkDir) check() error {
	info, err := w.Root.Stat(".")
	if err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("work directory %s has mode %04o, but it holds private keys: chmod 700 it, or name another one",
			w.path, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("work directory %s belongs to user id %d and not to you (%d), but it holds private keys: chown it, or name another one",
			w.path, st.Uid, os.Geteuid())
	}
	return nil
}

// Lock keeps other runs out for as long as the directory is open; the error is a *LockedError if one is at work. Two runs
// would make two certificate authorities and fetch each other's credentials.
func (w *WorkDir) Lock(o Owner) (err error) {
	f, err := w.Root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	w.held = f
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		data, _ := w.Read(lockFile) // without it, By says that it is not known
		return NewLockedError("the work directory "+w.path, data)
	}
	text, _ := json.Marshal(o) // an owner always can be
	if err = errors.Join(err, f.Truncate(0)); err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err != nil {
		return fmt.Errorf("work directory: lock: %w", err)
	}
	return nil
}

func (w *WorkDir) Join(name string) string { return filepath.Join(w.path, name) }

func (w *WorkDir) Close() error {
	if w.held == nil {
		return w.Root.Close()
	}
	// Closing alone would leave the lock to a process that is just being started and still has a copy of the descriptor.
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

// Write replaces a file; afterwards it has either its old content or all of the new one.
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
	next := name + ".new"
	f, err := w.Root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return w.Root.Rename(next, name)
}

// A workFile is a file of the work directory that is being written; it is there under its name once end has put it there.
type workFile struct {
	*os.File
	dir  *WorkDir
	name string
}

// Create begins a file that may be large.
func (w *WorkDir) Create(name string) (*workFile, error) {
	if err := w.Root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	f, err := w.Root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	return &workFile{f, w, name}, nil
}

// End completes the file, or drops it if writing it has failed.
func (f *workFile) End(failed error) error {
	if failed == nil {
		failed = f.Sync()
	}
	if err := errors.Join(failed, f.Close()); err != nil {
		return errors.Join(err, f.dir.Remove(f.name+".new"))
	}
	if err := f.dir.Root.Rename(f.name+".new", f.name); err != nil {
		return fmt.Errorf("work directory: write %s: %w", f.name, err)
	}
	return nil
}

// Remove removes a file, if it is there.
func (w *WorkDir) Remove(name string) error {
	if err := w.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("work directory: remove %s: %w", name, err)
	}
	return nil
}

// Keep returns a file, or makes it from what create returns.
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

// Secret returns a random Secret of 160 bits that is kept under a name.
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

type Discard struct{}

func (Discard) Write(p []byte) (int, error) { return len(p), nil }
func (Discard) Close() error                { return nil }

func RandomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: https://pkg.go.dev/crypto/rand#Read
	return hex.EncodeToString(b)
}
