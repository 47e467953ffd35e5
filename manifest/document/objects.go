package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// An ObjectText is one document of a stream of Kubernetes objects.
type ObjectText struct {
	Text []byte
	// Line is that of the stream, from 1, where Text begins.
	Line int
	// JSON means that Text is JSON, without comments; otherwise it is YAML.
	JSON bool
	// Err means that kubectl would refuse the document or ignore a part of it.
	Err error
}

// maxFlow bounds the values of a document that are read only to find out whether another one follows.
const maxFlow = 500_000

// SplitObjects splits a stream of Kubernetes objects as kubectl does: YAML at each line that begins with three
// hyphens, JSON after each value. A document end of YAML (three dots) separates, too: kubectl would ignore the text
// after it. Every byte except separators and comments is in one of the documents, so that no object is lost.
func SplitObjects(stream []byte) iter.Seq[ObjectText] {
	return func(yield func(ObjectText) bool) {
		stream := bytes.TrimPrefix(stream, []byte("\xef\xbb\xbf"))
		one := ObjectText{Line: 1}
		from, line := 0, 1
		for at := 0; at < len(stream); line++ {
			next := at + lineLength(stream[at:])
			text := stream[at:next]
			isEnd := bytes.HasPrefix(text, []byte("...")) && isBlank(text[3:])
			if isEnd || bytes.HasPrefix(text, []byte("---")) {
				one.Text = stream[from:at]
				if !one.each(yield) {
					return
				}
				one, from = ObjectText{Line: line + 1}, next
				if !isBlank(text[3:]) {
					one, from = ObjectText{Line: line, Err: errGlued}, next-len(bytes.TrimLeft(text[3:], " \t"))
				}
			}
			at = next
		}
		one.Text = stream[from:]
		one.each(yield)
	}
}

var (
	errGlued  = errors.New(`text follows "---" on the same line, which kubectl refuses: begin a new line after "---"`)
	errSecond = errors.New(`another object follows without a separator, and kubectl ignores it: write a line "---" between them`)
	errTwice  = errors.New(`apiVersion or kind stands twice, and of two objects kubectl takes the last one only: write a line "---" between them`)
)

// isTwice reports whether a document has apiVersion or kind twice, as two objects without a line "---" have. What
// stands within a value is indented.
func isTwice(text []byte) bool {
	seen := map[string]bool{}
	for len(text) > 0 {
		line := text[:lineLength(text)]
		text = text[len(line):]
		key, _, ok := bytes.Cut(line, []byte(":"))
		name := string(bytes.TrimRight(key, " \t"))
		if !ok || name != "apiVersion" && name != "kind" {
			continue
		}
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

// lineLength returns the length of the first line with its end: LF, CR LF or CR, which end lines in YAML.
func lineLength(text []byte) int {
	end := bytes.IndexAny(text, "\r\n")
	switch {
	case end < 0:
		return len(text)
	case bytes.HasPrefix(text[end:], []byte("\r\n")):
		return end + 2
	}
	return end + 1
}

// isBlank reports whether the rest of a line has nothing but blanks and a comment.
func isBlank(rest []byte) bool {
	rest = bytes.TrimSpace(rest)
	return len(rest) == 0 || rest[0] == '#'
}

// each yields the document unless it has nothing but comments, or each value of a stream of JSON.
func (o ObjectText) each(yield func(ObjectText) bool) bool {
	start := skipComments(o.Text)
	if len(start) == 0 {
		return true
	}
	if start[0] != '{' {
		if o.Err == nil && isTwice(o.Text) {
			o.Err = errTwice
		}
		return yield(o)
	}
	newlines := func(text []byte) int { return bytes.Count(text, []byte("\n")) }
	line := o.Line + newlines(o.Text[:len(o.Text)-len(start)])
	for end := 0; ; {
		rest := skipComments(start[end:])
		if len(rest) == 0 {
			return true
		}
		from := len(start) - len(rest)
		line += newlines(start[end:from])
		one := ObjectText{Text: rest, Line: line, Err: o.Err}
		var value json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(rest))
		if err := decoder.Decode(&value); err != nil {
			one.Err = cmp.Or(o.Err, followedBy(rest))
			return yield(one)
		}
		end = from + int(decoder.InputOffset())
		one.Text, one.JSON = start[from:end], true
		line += newlines(one.Text)
		if !yield(one) {
			return false
		}
	}
}

// skipComments returns the text without the blanks and comments before it.
func skipComments(text []byte) []byte {
	for {
		text = bytes.TrimLeft(text, " \t\r\n")
		if len(text) == 0 || text[0] != '#' {
			return text
		}
		text = text[lineLength(text):]
	}
}

// followedBy returns an error if another document follows a mapping in braces: only there it needs no separator.
func followedBy(text []byte) error {
	if capped.Values(text) > maxFlow {
		return fmt.Errorf("a document has more than %d values", maxFlow)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var first, second yaml.Node
	if decoder.Decode(&first) != nil {
		return nil // reading it reports the problem
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return errSecond
	}
	return nil
}
