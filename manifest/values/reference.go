package values

import "strings"

// A part is a piece of a text.
type part struct {
	// written is the part in the file: text, ${name}, or $${ for ${ itself.
	written string
	// name is that of a value, "" for text.
	name string
	// at is the offset in the text.
	at int
	// bad means that ${ begins no reference.
	bad bool
}

// ReferencePattern is the regular expression (ECMA 262, for JSON Schema) of a text with a reference.
const ReferencePattern = `\$\{[A-Za-z][A-Za-z0-9_-]*\}`

const (
	opening = "${"
	escaped = "$${"
)

// split splits a text into its parts.
func split(text string) []part {
	var parts []part
	add := func(from, to int, p part) {
		if from < to {
			p.at, p.written = from, text[from:to]
			parts = append(parts, p)
		}
	}
	from := 0
	for at := 0; at < len(text); {
		rest := text[at:]
		switch {
		case strings.HasPrefix(rest, escaped):
			add(from, at, part{})
			add(at, at+len(escaped), part{})
			at += len(escaped)
			from = at
		case strings.HasPrefix(rest, opening):
			add(from, at, part{})
			end := strings.IndexByte(rest, '}')
			if end < 0 || !nameGrammar.MatchString(rest[len(opening):end]) {
				if end < 0 || end > 80 || strings.ContainsAny(rest[:end], "\n") {
					end = len(opening) - 1
				}
				add(at, at+end+1, part{bad: true})
			} else {
				add(at, at+end+1, part{name: rest[len(opening):end]})
			}
			at += end + 1
			from = at
		default:
			at++
		}
	}
	add(from, len(text), part{})
	return parts
}

// Names returns the names of the values in a text, in their order.
func Names(text string) []string {
	var names []string
	for _, p := range split(text) {
		if p.name != "" {
			names = append(names, p.name)
		}
	}
	return names
}

// isPlain reports whether a text has neither a reference nor $${.
func isPlain(text string) bool { return !strings.Contains(text, opening) }

// text returns a part that is no reference as the reader of the file sees it.
func (p part) text() string {
	if p.written == escaped {
		return opening
	}
	return p.written
}
