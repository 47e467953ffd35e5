package builder

import (
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Reads reports whether a path is an existing file that the project is made of: the manifest, its lock, or a file that
// it or a cluster file names, also by a directory or a pattern. A bundle written there would destroy it.
func (p *Project) Reads(file string) bool {
	info, err := os.Stat(file)
	if err != nil || p.text != nil {
		return false
	}
	is := func(names ...string) bool {
		for _, name := range names {
			if one, err := os.Stat(name); err == nil && (os.SameFile(one, info) || one.IsDir() && below(name, file)) {
				return true
			}
		}
		return false
	}
	if is(p.File, LockFile(p.File)) {
		return true
	}
	found := false
	named := func(dir string) func(document.Locality, string, string) {
		return func(_ document.Locality, _, value string) {
			found = found || is(matches(dir, value)...)
		}
	}
	document.EachLocal(p.Manifest, named(p.dir))
	for i, file := range p.Manifest.ClusterFiles() {
		document.EachLocal(p.clusters[i], named(filepath.Dir(filepath.Join(p.dir, file))))
	}
	for _, in := range p.Manifest.Included {
		found = found || is(matches(p.dir, in.Path)...)
	}
	return found
}

// matches returns the paths that a name, or a pattern of names, in a file of a directory stands for.
func matches(dir, name string) []string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, filepath.FromSlash(name))
	}
	if found, err := filepath.Glob(name); err == nil && len(found) > 0 {
		return found
	}
	return []string{name}
}

// below reports whether a file lies in a directory.
func below(dir, file string) bool {
	absolute, err := filepath.Abs(file)
	if err != nil {
		return false
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return false
	}
	rest, err := filepath.Rel(dir, absolute)
	return err == nil && filepath.IsLocal(rest)
}
