package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// checkOutput refuses a place where no file can be put, before anything is done for it. What is there already is only
// replaced if it is a file: everything is written under another name first, and a device would be gone.
func checkOutput(path string) error {
	dir := filepath.Dir(path)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("cannot write %s: %w", path, fmt.Errorf(format, args...))
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("there is no directory %s: make it, or name another place", dir)
	case err != nil:
		return refuse("%w", err)
	case !info.IsDir():
		return refuse("%s is not a directory: name another place", dir)
	}
	if err := writable(dir); err != nil {
		return refuse("no file can be made in %s: %w", dir, err)
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

// writeFile writes whole or not at all.
func writeFile(path string, mode os.FileMode, content io.Reader) error {
	return writeFileWith(path, mode, func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
}

// writeFileWith is writeFile for what writes itself.
func writeFileWith(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if err := checkOutput(path); err != nil {
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
