package document

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxProblems bounds the reported problems of one file. A file with more is not a file of ours, and nobody reads the
// rest.
const MaxProblems = 200

// A Problem is one problem in a file, with its place.
type Problem struct {
	// File is the name that the reader of the file gave it.
	File string
	// Line and Column count from 1; both are 0 if a value came from Go code instead of a file.
	Line, Column int
	// Message names the problem and the remedy.
	Message string
}

// String returns the problem as file:line:Column: message, without unknown parts.
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

// Problems is the error of a file: every problem of a file, sorted by position, without duplicates.
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

// Position is the start of a value in its file. An empty file name means that of the tree.
type Position struct {
	Line, Column int
	File         string
}

// String returns the position within a message about the tree: line 7, or parts/web.yaml:7 of another file.
func (p Position) String() string {
	if p.File == "" {
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// A Tree is the parsed file behind a value, so that checks after decoding can point at places in it. Paths are written
// as in messages: images[2].name, hosts[cp1].address. A nil Tree knows no positions.
type Tree struct {
	File string
	Root *yaml.Node
	// Foreign allows secrets, which only other programs' files contain.
	Foreign bool
	// layers holds the origins of nodes from outside of the file.
	layers map[*yaml.Node]Layer
}

// Of returns the position of a node.
func (s *Tree) Of(n *yaml.Node) Position {
	if s == nil {
		return Position{Line: n.Line, Column: n.Column}
	}
	return Position{n.Line, n.Column, s.layers[n].File}
}

// At returns the position of the value at path, or of the nearest enclosing value in the file.
func (s *Tree) At(path string) Position {
	_, value := s.find(path)
	return value
}

// keyAt returns the position of the key of the value at path.
func (s *Tree) keyAt(path string) Position {
	key, _ := s.find(path)
	return key
}

// find walks down the file along path as far as it exists. A value without a key of its own, as in a list, starts at
// the same place as its key.
func (s *Tree) find(path string) (keyAt, valueAt Position) {
	if s == nil || s.Root == nil {
		return Position{}, Position{}
	}
	k, v, _ := walk(s.Root, path)
	return s.Of(k), s.Of(v)
}

// Node returns the node of the value at path, nil if the file has none there.
func (s *Tree) Node(path string) *yaml.Node {
	if s == nil || s.Root == nil {
		return nil
	}
	if _, v, whole := walk(s.Root, path); whole {
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
		n = Resolved(v)
	}
	return k, v, true
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
			if rest, ok = strings.CutPrefix(path, Index("", i)); ok {
				return item, item, rest, true
			}
		}
	}
	return nil, nil, "", false
}

// Join returns the path of a field below a path: a.b.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Index returns the path of an element of a list: a[0].
func Index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// Key returns the path of an entry of a map: a[name].
func Key(path, name string) string { return path + "[" + name + "]" }

// A Checker collects the problems of a decoded file.
type Checker struct {
	Tree  *Tree
	Found Problems
}

// Add reports a problem with the value at path.
func (c *Checker) Add(path, format string, args ...any) {
	c.report(c.Tree.At(path), path, fmt.Sprintf(format, args...))
}

// AddKey reports a problem with the key of the value at path.
func (c *Checker) AddKey(path, format string, args ...any) {
	c.report(c.Tree.keyAt(path), path, fmt.Sprintf(format, args...))
}

func (c *Checker) report(at Position, path, message string) {
	if len(c.Found) > MaxProblems {
		return
	}
	file := at.File
	if file == "" && c.Tree != nil {
		file = c.Tree.File
	}
	if len(c.Found) == MaxProblems {
		path, message = "", fmt.Sprintf("more than %d problems; the rest is not shown", MaxProblems)
	}
	if path != "" {
		message = Shorten(path) + ": " + message
	}
	c.Found = append(c.Found, Problem{File: file, Line: at.Line, Column: at.Column, Message: message})
}

// Place returns the place of a path, for messages that refer to a second place.
func (c *Checker) Place(path string) string {
	if at := c.Tree.keyAt(path); at.Line > 0 {
		return at.String()
	}
	return path
}

// Earlier returns the index of the earlier entry with the same id. It remembers i for an id without one.
func Earlier[K comparable](first map[K]int, id K, i int) (at int, twice bool) {
	if at, twice = first[id]; !twice {
		first[id] = i
	}
	return at, twice
}

// Shorten bounds a file's own text in messages.
func Shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
