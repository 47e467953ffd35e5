package cli

import (
	"bytes"
	"cmp"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// A newFile is a file that a command makes: its content is data, or that of the file from.
type newFile struct {
	path string
	data []byte
	from string
	mode fs.FileMode // 0 is 0644
}

// newFiles are the files that a command makes together.
type newFiles []newFile

// taken returns the paths at which something exists.
func (files newFiles) taken() (paths []string) {
	for _, f := range files {
		if exists(f.path) {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// has reports whether an existing file is at one of the paths.
func (files newFiles) has(file string) bool {
	info, err := os.Stat(file)
	return err == nil && slices.ContainsFunc(files, func(f newFile) bool {
		at, err := os.Stat(f.path)
		return err == nil && os.SameFile(at, info)
	})
}

// paths returns the paths of all files.
func (files newFiles) paths() (paths []string) {
	for _, f := range files {
		paths = append(paths, f.path)
	}
	return paths
}

// write writes the files, and makes their directories.
func (files newFiles) write() error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return err
		}
		if err := f.write(); err != nil {
			return err
		}
	}
	return nil
}

func (f newFile) write() error {
	var content io.Reader = bytes.NewReader(f.data)
	if f.from != "" {
		from, err := os.Open(f.from)
		if err != nil {
			return err
		}
		defer from.Close()
		content = from
	}
	return disk.WriteFile(f.path, cmp.Or(f.mode, 0o644), content)
}

// writeForInit writes the files of init, or none if one exists. It returns their paths.
func (files newFiles) writeForInit() ([]string, error) {
	if taken := files.taken(); len(taken) > 0 {
		return nil, usage.Errorf("%s: not replaced, because init replaces no file: name another directory",
			strings.Join(taken, ", "))
	}
	return files.paths(), files.write()
}
