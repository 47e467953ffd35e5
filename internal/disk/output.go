// Package disk looks at file systems before something is written to them, writes files whole or not at all and large
// ones steadily, and opens directories that are this user's own: kkbundle often runs as root, and others may write
// where it keeps its state.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckOutput returns an error unless a file can be written to path: its directory exists and is writable, and path
// is free or a regular file. Files are written under another name and renamed, which would replace a device.
func CheckOutput(path string) error {
	dir := filepath.Dir(path)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("cannot write %s: %w", path, fmt.Errorf(format, args...))
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("directory %s does not exist: create it, or name another place", dir)
	case err != nil:
		return refuse("%w", err)
	case !info.IsDir():
		return refuse("%s is not a directory: name another place", dir)
	}
	if err := writable(dir); err != nil {
		return refuse("directory %s is not writable: %w", dir, err)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return refuse("%w", err)
	case info.IsDir():
		return refuse("it is a directory: name a file")
	case !info.Mode().IsRegular():
		return refuse("it is not a regular file: name another place")
	}
	return nil
}

// WriteFile writes content to path with this mode, whole or not at all.
func WriteFile(path string, mode os.FileMode, content io.Reader) error {
	return WriteFileWith(path, mode, func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
}

// WriteFileWith is WriteFile for content that a function writes.
func WriteFileWith(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if err := CheckOutput(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	err = write(f)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// WriteFileIn writes a small file in a directory, whole or not at all.
func WriteFileIn(dir *os.Root, name string, mode os.FileMode, content []byte) error {
	next := name + ".new"
	if err := dir.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a killed run
		return err
	}
	f, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = dir.Rename(next, name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir.Name(), name), errors.Join(err, dir.Remove(next)))
	}
	return nil
}
