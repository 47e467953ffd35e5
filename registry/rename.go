package registry

import (
	"fmt"
	"strings"
)

// A Rename moves everything at or below the upstream path From to To: docker.io/library -> base turns
// docker.io/library/nginx into HOST/PREFIX/base/nginx. The registry's prefix stays in front.
type Rename struct {
	From string // upstream's host and path components, "registry.lab:5000/team"
	To   string // "" removes From
}

// ParseRename reads FROM=TO.
func ParseRename(s string) (Rename, error) {
	from, to, ok := strings.Cut(s, "=")
	from, to = strings.Trim(from, "/"), strings.Trim(to, "/")
	if !ok || from == "" {
		return Rename{}, fmt.Errorf("%q: write FROM=TO, as in docker.io/library=base", s)
	}
	r := Rename{From: from, To: to}
	if path := r.from(); !validName(path) {
		return Rename{}, fmt.Errorf("%q: %q is not the beginning of an upstream name", s, from)
	}
	if to != "" && !validName(to) {
		return Rename{}, fmt.Errorf(
			"%q: %q is not a repository name: use lower-case letters, digits, and . _ - between them", s, to)
	}
	return r, nil
}

// from returns From as in paths at the destination.
func (r Rename) from() string {
	host, path, ok := strings.Cut(r.From, "/")
	if !ok {
		return UpstreamPath(host)
	}
	return UpstreamPath(host) + "/" + path
}

// rename applies the first matching rule; the result is empty if a rule removes the whole path.
func rename(rules []Rename, path string) string {
	for _, r := range rules {
		rest, ok := strings.CutPrefix(path, r.from())
		if ok && (rest == "" || rest[0] == '/') {
			return strings.Trim(r.To+rest, "/")
		}
	}
	return path
}
