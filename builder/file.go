package builder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// An InputError is an error in a file that a user wrote, other than its syntax.
type InputError struct{ Err error }

// Error returns the text of Err.
func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// ReadFile reads a file that a user wrote: a regular file of at most bundle.MaxDocument bytes. The error is an
// *InputError that names the file.
func ReadFile(path string) ([]byte, error) { return readFile(path, bundle.MaxDocument) }

// ReadLock reads a lock file, or a file that may be one, like ReadFile, with the limit of locks.
func ReadLock(path string) ([]byte, error) { return readFile(path, manifest.MaxLockSize) }

func readFile(path string, limit int64) ([]byte, error) {
	data, err := func() ([]byte, error) {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s: there is no such file", path)
		case err != nil:
			return nil, err
		case info.IsDir():
			return nil, fmt.Errorf("%s is a directory: name a file", path)
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file", path)
		case info.Size() > limit:
			return nil, fmt.Errorf("%s has %s; at most %s are read", path, plain.Size(info.Size()), plain.Size(limit))
		}
		return os.ReadFile(path)
	}()
	if err != nil {
		return nil, &InputError{err}
	}
	return data, nil
}
