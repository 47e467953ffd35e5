package values

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// marker is the comment by which a file opts in.
const marker = "kkbundle: values"

// textLimits are those of Kubernetes YAML: definitions of custom resources are larger than files of ours.
func textLimits() document.Limits { return document.Limits{Size: 64 << 20, Values: 2_000_000} }

// OptsIn reports whether a file has the comment "# kkbundle: values" among the comments and empty lines at its
// beginning. Another word after "kkbundle:" there is a problem.
func OptsIn(file string, data []byte) (bool, error) {
	for number := 1; len(data) > 0; number++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		text := strings.TrimSpace(strings.TrimPrefix(string(line), "\ufeff"))
		if text == "" || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "#!") {
			continue
		}
		comment, ok := strings.CutPrefix(text, "#")
		if !ok {
			return false, nil
		}
		word, ok := strings.CutPrefix(strings.TrimSpace(comment), "kkbundle:")
		if !ok {
			continue
		}
		if strings.TrimSpace(word) == "values" {
			return true, nil
		}
		return false, document.Problems{{
			File: file, Line: number, Column: 1,
			Message: fmt.Sprintf("%q is no comment for kkbundle; write %q, or another comment", document.Shorten(text),
				"# "+marker),
		}}
	}
	return false, nil
}

// YAML returns the text of a YAML file with its references replaced, if the file opts in; else the text as it is. The
// lines stay where they are. The result is read again and compared: no value can change more than the text that names
// it. The error is document.Problems.
func (s *Set) YAML(file string, data []byte, rule Rule) ([]byte, error) {
	ok, err := OptsIn(file, data)
	if err != nil || !ok {
		return data, err
	}
	if s == nil {
		return nil, document.Problems{{
			File: file, Line: 1, Column: 1,
			Message: fmt.Sprintf("the file opts in to values (%q), and the manifest has none; define them under values, or remove the comment", "# "+marker),
		}}
	}
	return s.WholeYAML(file, data, rule)
}

// WholeYAML is YAML for a file that need not opt in.
func (s *Set) WholeYAML(file string, data []byte, rule Rule) ([]byte, error) {
	if s == nil || isPlain(string(data)) {
		return data, nil
	}
	roots, err := document.ParseAll(file, data, textLimits())
	if problems, ok := errors.AsType[document.Problems](err); ok {
		for i := range problems {
			problems[i].Message += "; between brackets or braces, ${name} needs quotes"
		}
		return nil, problems
	}
	x := &expansion{Set: s, file: file, lines: bytes.Split(data, []byte("\n")), rule: rule}
	for _, root := range roots {
		x.node(root, "")
	}
	if err := x.problems.Err(); err != nil {
		return nil, err
	}
	text := x.edit(data)
	if err := x.problems.Err(); err != nil {
		return nil, err
	}
	return text, x.compare(text, roots)
}

// edit replaces the references in the text of a file.
func (x *expansion) edit(data []byte) []byte {
	starts := []int{0}
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	var out bytes.Buffer
	done := 0
	for _, c := range x.changed {
		at := starts[c.node.Line-1] + byteColumn(x.lines[c.node.Line-1], c.node.Column)
		if at < done { // a scalar that lies before the one before: nothing of ours
			x.refuse(c.node, part{}, "", unfit)
			return nil
		}
		at += properties(data[at:])
		end, ok := x.replace(&out, data, done, at, c)
		if !ok {
			return nil
		}
		done = end
	}
	out.Write(data[done:])
	return out.Bytes()
}

const unfit = "the value does not fit in this text; write the text in double quotes"

// replace writes data from done up to the end of the last reference of a scalar that begins at at.
func (x *expansion) replace(out *bytes.Buffer, data []byte, done, at int, c change) (end int, ok bool) {
	fail := func(p part, message string) (int, bool) {
		x.refuse(&yaml.Node{Kind: yaml.AliasNode, Line: c.node.Line, Column: c.node.Column}, p, "", message)
		return 0, false
	}
	if isBare(c.node) || c.node.Style == yaml.TaggedStyle {
		if !bytes.HasPrefix(data[at:], []byte(c.before)) {
			return fail(c.parts[0], "a text of several lines without quotes has a value; write the text in quotes")
		}
		out.Write(data[done:at])
		out.WriteString(bare(c.node))
		return at + len(c.before), true
	}
	for _, p := range c.parts {
		if p.name == "" && p.written != escaped {
			continue
		}
		i := bytes.Index(data[at:], []byte(p.written))
		if i < 0 {
			return fail(p, unfit)
		}
		text := p.text()
		if p.name != "" {
			if text, ok = quoted(x.values[p.name].Text, c.node.Style); !ok {
				return fail(p, "the value has several lines or tabs, which this text cannot take; write the text in double quotes")
			}
		}
		out.Write(data[done : at+i])
		out.WriteString(text)
		at += i + len(p.written)
		done = at
	}
	return done, true
}

// properties returns the length of the tag and the anchor that begin a scalar.
func properties(data []byte) int {
	n := 0
	for n < len(data) && (data[n] == '!' || data[n] == '&') {
		end := bytes.IndexAny(data[n:], " \t\r\n")
		if end < 0 {
			break
		}
		for n += end; n < len(data) && strings.IndexByte(" \t\r\n", data[n]) >= 0; n++ {
		}
	}
	return n
}

// bare returns the text of an expanded scalar that was written without quotes.
func bare(n *yaml.Node) string {
	if n.Tag != "!!str" && strings.HasPrefix(n.Tag, "!!") {
		return n.Value
	}
	return `"` + inDoubleQuotes(n.Value) + `"`
}

// quoted returns a value for the inside of a scalar of a style, and whether that can have it.
func quoted(text string, style yaml.Style) (string, bool) {
	switch {
	case style&yaml.DoubleQuotedStyle != 0:
		return inDoubleQuotes(text), true
	case strings.ContainsAny(text, "\n\t"):
		return "", false
	case style&yaml.SingleQuotedStyle != 0:
		return strings.ReplaceAll(text, "'", "''"), true
	}
	return text, true
}

// inDoubleQuotes returns a text as the inside of a string of JSON, which YAML reads alike.
func inDoubleQuotes(text string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil {
		return "" // never happens for a string
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(out.String()), `"`), `"`)
}

// compare reads the expanded text and requires that it means what was to be written.
func (x *expansion) compare(text []byte, want []*yaml.Node) error {
	have, err := document.ParseAll(x.file, text, textLimits())
	if err == nil && len(have) != len(want) {
		err = document.Problems{{File: x.file, Line: 1, Column: 1, Message: unfit}}
	}
	if err != nil {
		return document.Problems{{
			File: x.file, Line: x.changed[0].node.Line, Column: x.changed[0].node.Column,
			Message: "a value does not fit in a text of this file; write texts with values in double quotes",
		}}
	}
	for i := range want {
		if at := x.differs(want[i], have[i]); at != nil {
			return document.Problems{{File: x.file, Line: at.Line, Column: at.Column, Message: unfit}}
		}
	}
	return nil
}

// differs returns the first node of want that have does not equal, nil if all do.
func (x *expansion) differs(want, have *yaml.Node) *yaml.Node {
	if want.Kind != have.Kind || want.Tag != have.Tag || want.Line != have.Line || want.Anchor != have.Anchor ||
		len(want.Content) != len(have.Content) || want.Value != have.Value {
		return want
	}
	for i := range want.Content {
		if at := x.differs(want.Content[i], have.Content[i]); at != nil {
			return at
		}
	}
	return nil
}

// Script returns a script with its references replaced, if it opts in. A value with a character that shells may take
// for something else is refused, and so is a secret: scripts lie on hosts where others can read them. The error is
// document.Problems.
func (s *Set) Script(file string, data []byte) ([]byte, error) {
	ok, err := OptsIn(file, data)
	if err != nil || !ok {
		return data, err
	}
	var problems document.Problems
	var out bytes.Buffer
	for i, line := range strings.SplitAfter(string(data), "\n") {
		for _, p := range split(line) {
			text, message := s.inScript(p)
			out.WriteString(text)
			if message != "" {
				problems = append(problems, document.Problem{
					File: file, Line: i + 1, Column: len([]rune(line[:p.at])) + 1, Message: message,
				})
			}
		}
	}
	return out.Bytes(), problems.Err()
}

// inScript returns the text for a part of a script, or why there is none.
func (s *Set) inScript(p part) (text, problem string) {
	switch {
	case p.bad:
		return "", badReference(p.written)
	case p.name == "":
		return p.text(), ""
	case s == nil:
		return "", undefined(p.name, nil)
	}
	v, known := s.values[p.name]
	if !known {
		return "", undefined(p.name, s.table.names())
	}
	s.use(p.name)
	switch {
	case v.Secret:
		return "", p.written + " is secret, and scripts can be read on hosts; read it from a file there that only root can read"
	case strings.Trim(v.Text, plainInShell) != "":
		return "", p.written + ": the value has characters that a shell may take for something else; in a script use letters, digits and " +
			"_ . : / @ , = + % -"
	}
	return v.Text, ""
}

const plainInShell = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@,=+%-"
