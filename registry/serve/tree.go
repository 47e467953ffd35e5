package serve

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A leaf is a blob with a path.
type leaf struct {
	path  string // without a leading slash; its components are never empty, "." or ".."
	title string // the file's own name, independent of its address
	blob  blob
	err   error // the reason that it cannot be served: the documents leading to it are damaged
}

// A tree holds blobs by path, for directories.
type tree struct {
	leaves []leaf // sorted by path
}

// add puts a leaf into the tree under the first free path; false means the same content is there already.
func (t *tree) add(l leaf, taken map[string]digest.Digest, otherwise ...string) bool {
	for _, path := range append([]string{l.path}, otherwise...) {
		has, used := taken[path]
		if used && has == l.blob.digest {
			return false
		}
		if !used {
			l.path = path
			taken[path] = l.blob.digest
			t.leaves = append(t.leaves, l)
			return true
		}
	}
	return false
}

func (t *tree) sort() {
	slices.SortFunc(t.leaves, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
}

func (t *tree) find(path string) (leaf, bool) {
	i, ok := slices.BinarySearchFunc(t.leaves, path,
		func(l leaf, path string) int { return strings.Compare(l.path, path) })
	if !ok {
		return leaf{}, false
	}
	return t.leaves[i], true
}

// under returns the leaves below a directory, "" or with a trailing slash.
func (t *tree) under(dir string) []leaf {
	i, _ := slices.BinarySearchFunc(t.leaves, dir, func(l leaf, dir string) int { return strings.Compare(l.path, dir) })
	n := i
	for n < len(t.leaves) && strings.HasPrefix(t.leaves[n].path, dir) {
		n++
	}
	return t.leaves[i:n]
}

// cleanPath builds a path from foreign names: components with a meaning to file systems or browsers are changed, empty
// ones left out.
func cleanPath(parts ...string) string {
	var clean []string
	for _, p := range parts {
		for c := range strings.SplitSeq(p, "/") {
			switch c {
			case "":
				continue
			case ".", "..":
				c = strings.ReplaceAll(c, ".", "_")
			}
			clean = append(clean, strings.Map(func(r rune) rune {
				if r == '\\' || unseen(r) {
					return '_'
				}
				return r
			}, c))
		}
	}
	return strings.Join(clean, "/")
}

// unseen reports whether a character is invisible: direction marks would change the displayed name.
func unseen(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// escapePath escapes a path for an address.
func escapePath(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// A listing is the content of a directory page.
type listing struct {
	Title string
	Up    bool // there is a directory above
	Sums  bool // it has SHA256SUMS
	Rows  []listingRow
	// Commands configure the directory as a host's repository.
	Commands []string
}

type listingRow struct {
	Name   string
	Link   template.URL // relative, escaped here
	Size   string
	Digest string
}

// listing lists a directory. dir is "" or ends in a slash.
func (t *tree) listing(root, dir string) listing {
	x := listing{Title: root + dir, Up: dir != "", Sums: root == "/files/"}
	for _, l := range t.under(dir) {
		name, rest, deeper := strings.Cut(l.path[len(dir):], "/")
		if deeper && rest != "" {
			name += "/"
		}
		row := listingRow{Name: name, Link: template.URL("./" + escapePath(name))} //nolint:gosec // escaped
		if n := len(x.Rows); n > 0 && x.Rows[n-1].Name == name {
			continue
		}
		if !deeper {
			row.Size, row.Digest = plain.Size(l.blob.size), string(l.blob.digest)
		}
		if l.err != nil {
			row.Size = "damaged"
		}
		x.Rows = append(x.Rows, row)
	}
	return x
}

// sendLeaf answers with a leaf's content as a download, never for display.
func (s *Server) sendLeaf(w http.ResponseWriter, r *http.Request, l leaf, mediaType string) error {
	if l.err != nil {
		return l.err
	}
	h := w.Header()
	name := l.path[strings.LastIndexByte(l.path, '/')+1:]
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(name))
	return s.sendBlob(w, r, l.blob)
}
