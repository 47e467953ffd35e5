// Package manual makes a static site of the documentation: one HTML page for each Markdown file, navigation, and a
// search that works without a server. The pages load nothing from other hosts, and their policy forbids it.
package manual

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// policy allows the site's own style, script and pictures only.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"

// A Site is the files of a manual, by their slash-separated path. index.html is the first page.
type Site map[string][]byte

// New makes the manual of a version. The files are those of the repository; without docs/README.md there is no manual.
func New(files fs.FS, version string) (Site, error) {
	b := &builder{files: files, version: version, pages: make(map[string]*page), site: make(Site)}
	if err := b.collect(); err != nil {
		return nil, err
	}
	for _, p := range b.ordered() {
		if err := b.read(p); err != nil {
			return nil, fmt.Errorf("%s: %w", p.source, err)
		}
	}
	if err := b.write(); err != nil {
		return nil, err
	}
	return b.site, nil
}

// Names returns the sorted paths.
func (s Site) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Write writes the site into a directory, which must be empty or absent. An interrupted run leaves no directory of
// this name.
func (s Site) Write(dir string) (err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil && len(entries) > 0:
		return fmt.Errorf("%s: the directory is not empty; remove it or name another one", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	for _, name := range s.Names() {
		file := filepath.Join(temp, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, s[name], 0o644); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // empty
		return err
	}
	return os.Rename(temp, dir)
}

// Handler serves the site that a function returns, below a path that ends with a slash. It calls the function at each
// request.
func Handler(prefix string, site func() (Site, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := site()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, prefix)
		if name == "" || strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		body, found := s[name]
		if !found {
			http.Error(w, "the manual has no page at this path; it begins at "+prefix, http.StatusNotFound)
			return
		}
		sum := sha256.Sum256(body)
		h := w.Header()
		h.Set("Content-Type", contentType(name))
		h.Set("Content-Security-Policy", policy+"; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(body))
	})
}

func contentType(name string) string {
	switch path.Ext(name) {
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".png":
		return "image/png"
	}
	return "text/html; charset=utf-8"
}
