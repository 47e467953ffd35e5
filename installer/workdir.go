package installer

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Names in the work directory.
const (
	caCertFile         = "pki/ca.crt"
	caKeyFile          = "pki/ca.key"
	registryCertFile   = "pki/registry.crt"
	registryKeyFile    = "pki/registry.key"
	registryPassFile   = "registry/password"
	registryHashFile   = "registry/htpasswd"
	registrySecretFile = "registry/http-secret"
	adminConfFile      = "admin.conf"
	bundleFile         = "bundle"
	logFile            = "install.log"
)

// A workDir is the directory on the deploy machine that belongs to one cluster: what only exists there is its secrets,
// which a lost directory makes anew, and admin.conf, which is fetched again.
type workDir struct {
	path string
	root *os.Root
	// volatile keeps new files in memory, for dry runs.
	volatile map[string][]byte
}

// openWorkDir opens or makes a work directory. It must not be open to others, because it has private keys.
func openWorkDir(path string, dryRun bool) (*workDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("work directory %s has mode %04o, but it holds private keys: chmod 700 it, or name another one",
			path, info.Mode().Perm())
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	w := &workDir{path: path, root: root}
	if dryRun {
		w.volatile = map[string][]byte{}
	}
	return w, nil
}

func (w *workDir) join(name string) string { return filepath.Join(w.path, name) }

func (w *workDir) close() error { return w.root.Close() }

// read returns a file; the error is fs.ErrNotExist if there is none.
func (w *workDir) read(name string) ([]byte, error) {
	if data, ok := w.volatile[name]; ok {
		return data, nil
	}
	f, err := w.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	return data, nil
}

// write replaces a file; afterwards it has either its old content or all of the new one.
func (w *workDir) write(name string, data []byte) error {
	if w.volatile != nil {
		w.volatile[name] = data
		return nil
	}
	if err := w.replace(name, data); err != nil {
		return fmt.Errorf("work directory: write %s: %w", name, err)
	}
	return nil
}

func (w *workDir) replace(name string, data []byte) error {
	if err := w.root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	next := name + ".new"
	f, err := w.root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return w.root.Rename(next, name)
}

// remove removes a file, if it is there.
func (w *workDir) remove(name string) error {
	if err := w.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("work directory: remove %s: %w", name, err)
	}
	return nil
}

// keep returns a file, or makes it from what create returns.
func (w *workDir) keep(name string, create func() ([]byte, error)) ([]byte, error) {
	data, err := w.read(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = create(); err != nil {
		return nil, err
	}
	return data, w.write(name, data)
}

// secret returns a random secret of 160 bits that is kept under a name.
func (w *workDir) secret(name string) (string, error) {
	data, err := w.keep(name, func() ([]byte, error) { return []byte(randomHex(20)), nil })
	return string(data), err
}

// openLog opens install.log for appending; a dry run has none.
func (w *workDir) openLog() (io.WriteCloser, error) {
	if w.volatile != nil {
		return discard{}, nil
	}
	f, err := w.root.OpenFile(logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	return f, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails: https://pkg.go.dev/crypto/rand#Read
	return hex.EncodeToString(b)
}
