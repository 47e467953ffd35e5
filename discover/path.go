package discover

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A jsonPath leads to values in an object. It is the part of JSONPath (RFC 9535) that has names, indexes, wildcards and
// descendants; kubectl's braces around it and a leading $ may be left out.
type jsonPath []step

// A step goes from a value to some of the values below it.
type step struct {
	name string // key; "" for an index
	// index in a list; -1 for all entries and all values.
	index int
	// deep selects every level below.
	deep bool
}

const maxSteps = 64

func parsePath(text string) (jsonPath, error) {
	rest := strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"), "$")
	bad := func(what string) error {
		return fmt.Errorf("path %q: %s; write one such as .spec.nodes[*].image", shorten(text), what)
	}
	if rest != "" && rest[0] != '.' && rest[0] != '[' {
		rest = "." + rest
	}
	var p jsonPath
	for rest != "" {
		if len(p) == maxSteps {
			return nil, bad("too long")
		}
		var s step
		var ok bool
		switch {
		case rest[0] == '[':
			s, rest, ok = bracket(rest)
		case rest[0] == '.':
			s, rest, ok = dotted(rest)
		}
		if !ok {
			return nil, bad("it cannot be read")
		}
		p = append(p, s)
	}
	if len(p) == 0 {
		return nil, bad("empty")
	}
	return p, nil
}

func dotted(rest string) (s step, after string, ok bool) {
	rest = rest[1:]
	if s.deep = strings.HasPrefix(rest, "."); s.deep {
		rest = rest[1:]
	}
	end := strings.IndexAny(rest, ".[")
	if end < 0 {
		end = len(rest)
	}
	s.name, rest = rest[:end], rest[end:]
	if s.name == "*" {
		s.name, s.index = "", -1
		return s, rest, !s.deep
	}
	return s, rest, s.name != "" && !strings.ContainsAny(s.name, "]{}'\"?@()$ ")
}

func bracket(rest string) (s step, after string, ok bool) {
	if quote := rest[1:min(2, len(rest))]; quote == "'" || quote == `"` {
		name, after, ok := strings.Cut(rest[2:], quote+"]")
		return step{name: name}, after, ok && name != ""
	}
	inner, after, ok := strings.Cut(rest[1:], "]")
	if inner == "*" {
		return step{index: -1}, after, ok
	}
	n, err := strconv.Atoi(inner)
	return step{index: n}, after, ok && err == nil && n >= 0
}

// each calls f for every value that the path selects, with its location, in order.
func (p jsonPath) each(at string, v any, f func(at string, v any)) {
	if len(p) == 0 {
		f(at, v)
		return
	}
	s, rest := p[0], p[1:]
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if s.name == key || s.name == "" && s.index < 0 {
				rest.each(joinPath(at, key), v[key], f)
			}
			if s.deep {
				p.each(joinPath(at, key), v[key], f)
			}
		}
	case []any:
		for i, one := range v {
			if s.name == "" && (s.index < 0 || s.index == i) {
				rest.each(indexPath(at, i), one, f)
			}
			if s.deep {
				p.each(indexPath(at, i), one, f)
			}
		}
	}
}

// joinPath appends a key.
func joinPath(at, key string) string {
	switch {
	case key == "" || strings.ContainsAny(key, ".[]' "):
		return at + "['" + shorten(key) + "']"
	case at == "":
		return key
	}
	return at + "." + key
}

func indexPath(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }
