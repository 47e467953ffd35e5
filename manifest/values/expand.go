package values

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Rule returns the reason why a file must not have a value at a path, "" if it may.
type Rule func(path string, v Value) string

// Tree replaces the references of a parsed file, whose text is data. Keys at the top that skip names are left alone.
// The error is document.Problems.
func (s *Set) Tree(t *document.Tree, data []byte, rule Rule, skip ...string) error {
	if s == nil {
		return nil
	}
	x := &expansion{Set: s, tree: t, file: t.File, lines: bytes.Split(data, []byte("\n")), rule: rule}
	root := t.Root
	if root.Kind != yaml.MappingNode {
		x.node(root, "")
		return x.problems.Err()
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		k := root.Content[i]
		if !slices.Contains(skip, k.Value) {
			x.node(root.Content[i+1], k.Value)
		}
	}
	return x.problems.Err()
}

// maxExpansion bounds the bytes of all values in one file.
const maxExpansion = 16 << 20

// An expansion is that of one file.
type expansion struct {
	*Set
	tree     *document.Tree // nil for a text
	file     string
	lines    [][]byte
	rule     Rule
	problems document.Problems
	size     int // bytes of the values so far
	// changed are the scalars with references, in the order of the file, with their text before.
	changed []change
}

type change struct {
	node   *yaml.Node
	before string
	parts  []part
}

// node expands a node and everything below it. An alias has been expanded at its anchor.
func (x *expansion) node(n *yaml.Node, path string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			below := document.Join(path, k.Value)
			x.node(k, below)
			x.node(n.Content[i+1], below)
		}
	case yaml.SequenceNode, yaml.DocumentNode:
		for i, one := range n.Content {
			x.node(one, document.Index(path, i))
		}
	case yaml.ScalarNode:
		x.scalar(n, path)
	}
}

// scalar expands one text. A value that stands alone and without quotes keeps its type; else the result is a text.
func (x *expansion) scalar(n *yaml.Node, path string) {
	if isPlain(n.Value) {
		return
	}
	c := change{n, n.Value, split(n.Value)}
	var text strings.Builder
	for _, p := range c.parts {
		v, known := x.values[p.name]
		refuse := func(message string) { x.refuse(n, p, path, message) }
		switch {
		case p.bad:
			refuse(badReference(p.written))
		case p.name == "":
			text.WriteString(p.text())
		case !known:
			refuse(undefined(p.name, x.table.names()))
		default:
			x.use(p.name)
			if x.rule != nil {
				if reason := x.rule(path, v); reason != "" {
					refuse(p.written + ": " + reason)
				}
			}
			x.size += len(v.Text)
			if x.size > maxExpansion {
				refuse(p.written + ": the values in this file have more than " + plain.Size(maxExpansion))
				return
			}
			text.WriteString(v.Text)
		}
	}
	n.Value = text.String()
	if alone := len(c.parts) == 1 && c.parts[0].name != "" && isBare(n); alone {
		n.Tag = x.values[c.parts[0].name].tag()
	} else if strings.HasPrefix(n.Tag, "!!") && n.Style&yaml.TaggedStyle == 0 {
		n.Tag = "!!str"
	}
	x.changed = append(x.changed, c)
}

// isBare reports whether a scalar is written without quotes.
func isBare(n *yaml.Node) bool {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Style&(quoted|yaml.TaggedStyle) == 0
}

// tag returns the tag that YAML gives the value without quotes.
func (v Value) tag() string {
	switch kind := v.kind(); {
	case kind == Boolean:
		return "!!bool"
	case kind != String && integerGrammar.MatchString(v.Text):
		return "!!int"
	case kind != String:
		return "!!float"
	}
	return "!!str"
}

// refuse reports a problem with a part of a scalar.
func (x *expansion) refuse(n *yaml.Node, p part, path, message string) {
	if len(x.problems) > document.MaxProblems {
		return
	}
	at := x.place(n, p)
	if path != "" {
		message = document.Shorten(path) + ": " + message
	}
	x.problems = append(x.problems, document.Problem{
		File: cmp.Or(at.File, x.file), Line: at.Line, Column: at.Column, Message: message,
	})
}

// place returns the position of a part: found in the scalar's lines, or else the scalar's own.
func (x *expansion) place(n *yaml.Node, p part) document.Position {
	own := x.tree.Of(n)
	if own.File != "" { // lines are those of the file itself
		return own
	}
	before := 0 // occurrences of the same text in the scalar
	if n.Kind == yaml.ScalarNode && p.at <= len(n.Value) {
		before = strings.Count(n.Value[:p.at], p.written)
	}
	for i := n.Line - 1; i >= 0 && i < len(x.lines); i++ {
		text, from := x.lines[i], 0
		if i == n.Line-1 {
			from = byteColumn(text, n.Column)
		}
		for {
			at := bytes.Index(text[from:], []byte(p.written))
			if at < 0 {
				break
			}
			if before == 0 {
				return document.Position{Line: i + 1, Column: len([]rune(string(text[:from+at]))) + 1}
			}
			before, from = before-1, from+at+len(p.written)
		}
	}
	return own
}

// byteColumn returns the offset in a line of a column, which counts characters from 1.
func byteColumn(line []byte, column int) int {
	for i := range string(line) {
		if column--; column <= 0 {
			return i
		}
	}
	return len(line)
}
