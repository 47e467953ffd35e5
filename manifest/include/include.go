// Package include reads the files that a manifest includes: files below its directory, and directories for their
// files *.yaml.
package include

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Key is the key of a manifest that lists them.
const Key = "include"

// maxFiles bounds the files that one manifest includes.
const maxFiles = 100

// A File is a manifest that is merged with others.
type File struct {
	Name   string // below the directory of the including manifest
	Place  int    // in the order of reading: before what it includes
	Digest digest.Digest
	Tree   *document.Tree
}

// Read returns the files that a manifest includes, and those that they include, in the order in which they are merged:
// each after what it includes, the manifest without a digest as the last one. dir is the manifest's directory; one
// without, nil, includes nothing. check refuses a file that is no manifest; its error goes on after the file's name.
// The files that were read before an error are returned with it.
func Read(src *document.Tree, dir fs.FS, check func(*document.Tree) error) ([]File, error) {
	r := &includer{src: src, dir: dir, check: check}
	r.add(File{Name: path.Base(filepath.ToSlash(src.File)), Tree: src})
	return r.files, r.found.Err()
}

// An includer reads the files that a manifest includes, in the order in which they are merged, the manifest last.
type includer struct {
	src   *document.Tree
	dir   fs.FS
	check func(*document.Tree) error
	files []File
	open  []string // names of files whose own includes are being read, from the manifest on
	size  int      // bytes of all included files
	count int      // of included files
	found document.Problems
}

// add reads the files that a file includes, and adds it after them.
func (r *includer) add(f File) {
	r.open = append(r.open, f.Name)
	c := &document.Checker{Tree: f.Tree}
	list := document.Resolved(f.Tree.Node(Key))
	switch {
	case list == nil, list.Tag == "!!null":
	case list.Kind != yaml.SequenceNode:
		c.Add(Key, "want a list of files and directories, such as [base.yaml, parts]")
	case r.dir == nil:
		c.AddKey(Key, "only a manifest in a directory includes files; write their content here")
	default:
		for i, one := range list.Content {
			if err := r.entry(path.Dir(f.Name), document.Resolved(one)); err != nil {
				c.Add(document.Index(Key, i), "%v", err)
			}
		}
	}
	r.found = append(r.found, c.Found...)
	r.open = r.open[:len(r.open)-1]
	r.files = append(r.files, f)
}

// entry reads the file, or the files of the directory, that an include in a file of directory dir names.
func (r *includer) entry(dir string, n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		return errors.New("want the path of a file or a directory")
	}
	name := path.Join(dir, n.Value)
	if path.IsAbs(n.Value) || !fs.ValidPath(name) {
		return fmt.Errorf("%s is not below the manifest's directory; move it there, and write a path relative to this file",
			document.Shorten(n.Value))
	}
	info, err := r.stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return r.file(name, info)
	}
	entries, err := fs.ReadDir(r.dir, name)
	if err != nil {
		return unreadable(name, err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return path.Ext(e.Name()) != ".yaml" })
	if len(entries) == 0 {
		return fmt.Errorf("directory %s has no file *.yaml; add one, or leave the include out", document.Shorten(name))
	}
	for _, e := range entries { // in the order of their names
		below := path.Join(name, e.Name())
		info, err := r.stat(below)
		if err == nil {
			err = r.file(below, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// file reads an included file, unless another include has: it counts where it is first.
func (r *includer) file(name string, info fs.FileInfo) error {
	switch {
	case slices.Contains(r.open, name):
		return fmt.Errorf("%s includes itself (%s); leave one of these includes out", document.Shorten(name),
			strings.Join(append(slices.Clone(r.open[slices.Index(r.open, name):]), name), ", "))
	case slices.ContainsFunc(r.files, func(f File) bool { return f.Name == name }):
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file; include files only", document.Shorten(name))
	case r.count == maxFiles:
		return fmt.Errorf("more than %d files are included; put the content of several into one", maxFiles)
	}
	data, err := r.read(name)
	if err != nil {
		return err
	}
	r.count++
	shown := path.Join(path.Dir(filepath.ToSlash(r.src.File)), name)
	t, err := document.Parse(shown, data, document.FileLimits())
	if problems, ok := errors.AsType[document.Problems](err); ok {
		r.found = append(r.found, problems...)
		return nil
	}
	if err := r.check(t); err != nil {
		return fmt.Errorf("%s %w", document.Shorten(name), err)
	}
	r.add(File{Name: name, Place: r.count, Digest: digest.FromBytes(data), Tree: r.src.Beside(shown, t.Root)})
	return nil
}

// read returns the content of a file. All together are at most as large as one manifest.
func (r *includer) read(name string) ([]byte, error) {
	f, err := r.dir.Open(name)
	if err != nil {
		return nil, unreadable(name, err)
	}
	defer f.Close()
	left := document.MaxFileSize - r.size
	data, err := io.ReadAll(io.LimitReader(f, int64(left)+1))
	if err != nil {
		return nil, unreadable(name, err)
	}
	if r.size += len(data); len(data) > left {
		r.size = document.MaxFileSize
		return nil, fmt.Errorf("with %s, the included files have more than %s; include less", document.Shorten(name),
			plain.Size(document.MaxFileSize))
	}
	return data, nil
}

func (r *includer) stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(r.dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is no such file; write a path relative to this file", document.Shorten(name))
	}
	if err != nil {
		return nil, unreadable(name, err)
	}
	return info, nil
}

// unreadable is the error of a file, such as one that a link has outside of the manifest's directory.
func unreadable(name string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	return fmt.Errorf("%s cannot be read: %w; keep included files, and what links lead to, below the manifest's directory",
		document.Shorten(name), err)
}
