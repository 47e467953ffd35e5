package registry

import (
	"fmt"
	"strings"
)

// A Rename puts what lies at or below the upstream path From at To instead: docker.io/library -> base makes
// HOST/PREFIX/base/nginx of docker.io/library/nginx. The prefix of the registry stays before it.
type Rename struct {
	From string // host and path components as upstream has them, "registry.lab:5000/team"
	To   string // "" drops From
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
		return Rename{}, fmt.Errorf("%q: %q is not a repository name: use lower-case letters, digits, and . _ - between them", s, to)
	}
	return r, nil
}

// from is From as paths at the destination have it.
func (r Rename) from() string {
	host, path, ok := strings.Cut(r.From, "/")
	if !ok {
		return UpstreamPath(host)
	}
	return UpstreamPath(host) + "/" + path
}

// rename applies the first rule that fits; nothing is left of a path that a rule drops as a whole.
func rename(rules []Rename, path string) string {
	for _, r := range rules {
		rest, ok := strings.CutPrefix(path, r.from())
		if ok && (rest == "" || rest[0] == '/') {
			return strings.Trim(r.To+rest, "/")
		}
	}
	return path
}
