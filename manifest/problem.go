package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxProblems bounds the reported problems of one file. A file with more is not a file of ours, and nobody reads the
// rest.
const maxProblems = 200

// A Problem is one problem in a file, with its place.
type Problem struct {
	// File is the name given to the Parse function.
	File string
	// Line and Column count from 1; both are 0 if a value came from Go code instead of a file.
	Line, Column int
	// Message names the problem and the remedy.
	Message string
}

// String returns the problem as file:line:column: message, without unknown parts.
func (p Problem) String() string {
	switch {
	case p.Line > 0:
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
	case p.File != "":
		return p.File + ": " + p.Message
	default:
		return p.Message
	}
}

// Problems is the error of the Parse functions: every problem of a file, sorted by position, without duplicates.
type Problems []Problem

// Error returns one problem per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems sorted by position, without duplicates, as an error; nil if there is none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(p)
}

// position is the start of a value in its file. An empty file name means the one given to the Parse function.
type position struct {
	line, column int
	file         string
}

// source is the parsed file behind a value, so that checks after decoding can point at places in it. Paths are written
// as in messages: images[2].name, hosts[cp1].address. A nil source knows no positions.
type source struct {
	file string
	root *yaml.Node
	// foreign allows secrets, which only other programs' files contain.
	foreign bool
	// layers holds the origins of nodes from outside of the file.
	layers map[*yaml.Node]layer
}

// of returns the position of a node.
func (s *source) of(n *yaml.Node) position { return position{n.Line, n.Column, s.layers[n].file} }

// at returns the position of the value at path, or of the nearest enclosing value in the file.
func (s *source) at(path string) position {
	_, value := s.find(path)
	return value
}

// keyAt returns the position of the key of the value at path.
func (s *source) keyAt(path string) position {
	key, _ := s.find(path)
	return key
}

// find walks down the file along path as far as it exists. A value without a key of its own, as in a list, starts at
// the same place as its key.
func (s *source) find(path string) (keyAt, valueAt position) {
	if s == nil || s.root == nil {
		return position{}, position{}
	}
	k, v, _ := walk(s.root, path)
	return s.of(k), s.of(v)
}

// node returns the node of the value at path, nil if the file has none there.
func (s *source) node(path string) *yaml.Node {
	if s == nil || s.root == nil {
		return nil
	}
	if _, v, whole := walk(s.root, path); whole {
		return v
	}
	return nil
}

// walk follows path as far as it exists: key and value are the last ones found.
func walk(n *yaml.Node, path string) (k, v *yaml.Node, whole bool) {
	k, v = n, n
	if path != "" && path[0] != '[' {
		path = "." + path
	}
	for path != "" {
		nextKey, next, rest, ok := step(n, path)
		if !ok {
			return k, v, false
		}
		k, v, path = nextKey, next, rest
		n = resolved(v)
	}
	return k, v, true
}

// resolved returns the target of an alias, or the node itself.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// step follows the first element of a path, .name or [key]. It consumes at least one byte of the path, so that walking
// ends even if an alias is recursive.
func step(n *yaml.Node, path string) (k, v *yaml.Node, rest string, ok bool) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v = n.Content[i], n.Content[i+1]
			rest, ok = strings.CutPrefix(path[1:], k.Value)
			if ok && path[0] == '[' {
				rest, ok = strings.CutPrefix(rest, "]")
			}
			if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return k, v, rest, true
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if rest, ok = strings.CutPrefix(path, index("", i)); ok {
				return item, item, rest, true
			}
		}
	}
	return nil, nil, "", false
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func key(path, name string) string { return path + "[" + name + "]" }

// checker collects the problems of a decoded file, and checks values that files of several kinds have. Each kind of file
// has a checker of its own on top of it.
type checker struct {
	src   *source
	found Problems
}

// add reports a problem with the value at path.
func (c *checker) add(path, format string, args ...any) {
	c.report(c.src.at(path), path, fmt.Sprintf(format, args...))
}

// addKey reports a problem with the key of the value at path.
func (c *checker) addKey(path, format string, args ...any) {
	c.report(c.src.keyAt(path), path, fmt.Sprintf(format, args...))
}

func (c *checker) report(at position, path, message string) {
	if len(c.found) > maxProblems {
		return
	}
	file := at.file
	if file == "" && c.src != nil {
		file = c.src.file
	}
	if len(c.found) == maxProblems {
		path, message = "", fmt.Sprintf("more than %d problems; the rest is not shown", maxProblems)
	}
	if path != "" {
		message = shorten(path) + ": " + message
	}
	c.found = append(c.found, Problem{File: file, Line: at.line, Column: at.column, Message: message})
}

// line returns the place of a path, for messages that refer to a second place.
func (c *checker) line(path string) string {
	if at := c.src.keyAt(path); at.line > 0 {
		return fmt.Sprintf("line %d", at.line)
	}
	return path
}

// earlier returns the index of the earlier entry with the same id. It remembers i for an id without one.
func earlier[K comparable](first map[K]int, id K, i int) (at int, twice bool) {
	if at, twice = first[id]; !twice {
		first[id] = i
	}
	return at, twice
}

// shorten bounds a file's own text in messages.
func shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Problem returns an error about the value at a path of the cluster file, with its position, for checks that need more
// than the file. Paths are written as in messages, such as components[runc].
func (c *Cluster) Problem(path, message string) error { return problemAt(c.src, path, message) }

// Problem returns an error about the value at a path of the manifest, like Cluster.Problem.
func (b *Bundle) Problem(path, message string) error { return problemAt(b.src, path, message) }

// Problem returns an error about the value at a path of the inventory, like Cluster.Problem.
func (inv *Inventory) Problem(path, message string) error { return problemAt(inv.src, path, message) }

func problemAt(src *source, path, message string) error {
	c := checker{src: src}
	c.add(path, "%s", message)
	return c.found
}
