package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/merge"
)

const (
	includeKey = "include"
	withoutKey = "without"
	// maxIncluded bounds the files that one manifest includes.
	maxIncluded = 100
)

// mergeIncluded merges a manifest over the files that it includes, and returns these. The tree keeps the places of all
// files. dir is the directory of the manifest; a manifest without one, nil, includes nothing.
func mergeIncluded(src *document.Tree, dir fs.FS) ([]Input, error) {
	if !isBundle(src) || src.Node(includeKey) == nil && src.Node(withoutKey) == nil {
		return nil, nil
	}
	r := &includer{src: src, dir: dir}
	r.add(path.Base(filepath.ToSlash(src.File)), src)
	if err := r.found.Err(); err != nil {
		return r.inputs, err
	}
	root, err := merge.Files(r.trees, func(i int, root *yaml.Node) { moveLocal(root, path.Dir(r.names[i])) },
		merge.Keys{Without: fieldNames(reflect.TypeFor[Without]())})
	if err == nil {
		src.Root = root
	}
	return r.inputs, err
}

// An includer reads the files that a manifest includes, in the order in which they are merged, the manifest last.
type includer struct {
	src    *document.Tree
	dir    fs.FS
	names  []string // below dir
	trees  []*document.Tree
	inputs []Input
	open   []string // files whose own includes are being read, from the manifest on
	size   int      // bytes of all included files
	found  document.Problems
}

// add reads the files that a file includes, and adds it after them.
func (r *includer) add(name string, t *document.Tree) {
	r.open = append(r.open, name)
	c := &document.Checker{Tree: t}
	list := document.Resolved(t.Node(includeKey))
	switch {
	case list == nil, list.Tag == "!!null":
	case list.Kind != yaml.SequenceNode:
		c.Add(includeKey, "want a list of files and directories, such as [base.yaml, parts]")
	case r.dir == nil:
		c.AddKey(includeKey, "only a manifest in a directory includes files; write their content here")
	default:
		for i, one := range list.Content {
			if err := r.entry(path.Dir(name), document.Resolved(one)); err != nil {
				c.Add(document.Index(includeKey, i), "%v", err)
			}
		}
	}
	r.found = append(r.found, c.Found...)
	r.open = r.open[:len(r.open)-1]
	r.names, r.trees = append(r.names, name), append(r.trees, t)
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
	case slices.Contains(r.names, name):
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file; include files only", document.Shorten(name))
	case len(r.inputs) == maxIncluded:
		return fmt.Errorf("more than %d files are included; put the content of several into one", maxIncluded)
	}
	data, err := r.read(name)
	if err != nil {
		return err
	}
	r.inputs = append(r.inputs, Input{Path: name, Digest: digest.FromBytes(data)})
	shown := path.Join(path.Dir(filepath.ToSlash(r.src.File)), name)
	t, err := document.Parse(shown, data, document.FileLimits())
	if problems, ok := errors.AsType[document.Problems](err); ok {
		r.found = append(r.found, problems...)
		return nil
	}
	if !isBundle(t) {
		return fmt.Errorf("%s is no manifest; write apiVersion: %s and kind: %s, or leave it out", document.Shorten(name),
			APIVersion, KindBundle)
	}
	r.add(name, r.src.Beside(shown, t.Root))
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

// moveLocal makes the paths in an included file, which are relative to its directory, relative to the manifest. One
// that begins with a value's name may be absolute, or empty, and stays as it is.
func moveLocal(root *yaml.Node, dir string) {
	if dir == "." {
		return
	}
	document.EachLocalNode(root, reflect.TypeFor[Bundle](), func(_ document.Locality, n *yaml.Node) {
		switch {
		case n.Value == "", path.IsAbs(n.Value), strings.HasPrefix(n.Value, "${"):
		case strings.Contains(n.Value, "${"): // path.Join would take a name for a directory
			n.Value = dir + "/" + n.Value
		default:
			n.Value, n.Tag = path.Join(dir, n.Value), "!!str"
		}
	})
}
