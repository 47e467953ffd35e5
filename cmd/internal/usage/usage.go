// Package usage has values of flags and arguments that several commands share: sizes, ages, addresses of bundles in
// registries.
package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// An Error is a wrong command line. kkbundle exits with 64.
type Error struct{ Err error }

// Errorf returns an Error, formatted like fmt.Errorf.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// Error returns the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// FileError returns err without the operation if a file does not exist. The caller names the file.
func FileError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no such file")
	}
	return err
}

// IsYAML reports whether path names a YAML file: a manifest or a lock, not a bundle.
func IsYAML(path string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, strings.ToLower(filepath.Ext(path)))
}
