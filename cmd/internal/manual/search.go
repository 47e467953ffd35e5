package manual

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/yuin/goldmark/ast"
	tables "github.com/yuin/goldmark/extension/ast"
)

// mostIndex bounds the index of the search, which a browser loads as a whole.
const mostIndex = 2 << 20

// A section is what the search finds: a heading with the text below it, or one message of a table of messages.
type section struct {
	id, title, text string
	level           int
	message         bool
}

// read takes title, headings and sections from a parsed page, and gives rows of messages an anchor.
func (p *page) read(doc ast.Node, source []byte) {
	current := &section{level: 1}
	var text bytes.Buffer
	end := func() {
		if current.text = text.String(); current.title != "" {
			p.sections = append(p.sections, *current)
		}
		text.Reset()
	}
	seen := anchors{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			end()
			title := plainText(h, source)
			if p.title == "" {
				p.title = title
			}
			current = &section{id: idOf(h), title: title, level: h.Level}
			p.headings = append(p.headings, heading{Level: h.Level, ID: idOf(h), Text: title})
			continue
		}
		if t, ok := n.(*tables.Table); ok {
			if head := headOf(t, source); head == headMessage || head == headTerm {
				p.rows(t, source, seen)
				continue
			}
		}
		if text.Len() > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(plainText(n, source))
	}
	end()
	p.linked(doc, source)
}

// rows adds the rows of a table. An anchor depends on the first cell alone, so that links survive other versions.
func (p *page) rows(t *tables.Table, source []byte, seen anchors) {
	message := headOf(t, source) == headMessage
	if message {
		t.SetAttributeString("class", "messages")
	}
	for row := t.FirstChild().NextSibling(); row != nil; row = row.NextSibling() {
		title := plainText(row.FirstChild(), source)
		name := "term-" + title
		if message {
			h := fnv.New32a()
			_, _ = h.Write([]byte(title)) // it never fails
			name = fmt.Sprintf("m%x", h.Sum32())
		}
		id := seen.Generate([]byte(name), row.Kind())
		row.SetAttributeString("id", id)
		s := section{id: string(id), title: title, level: 4, message: message}
		for cell := row.FirstChild().NextSibling(); cell != nil; cell = cell.NextSibling() {
			s.text += plainText(cell, source) + " "
		}
		p.sections = append(p.sections, s)
	}
}

// indexed is the index of the search. Its fields are short: the browser loads them with every row.
type indexed struct {
	Pages    [][3]string `json:"pages"`    // path, title, language
	Sections [][]any     `json:"sections"` // number of the page, anchor, title, text, level; 1 for a message
}

// index returns a script that hands the index to manual.js: a page of file:// may load scripts, but no JSON.
func (b *builder) index() ([]byte, error) {
	var x indexed
	for i, p := range b.ordered() {
		x.Pages = append(x.Pages, [3]string{p.path, p.title, p.lang})
		for _, s := range p.sections {
			row := []any{i, s.id, s.title, s.text, s.level}
			if s.message {
				row = append(row, 1)
			}
			x.Sections = append(x.Sections, row)
		}
	}
	var out bytes.Buffer
	out.WriteString("manualIndex(")
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // it is no part of a page
	if err := e.Encode(x); err != nil {
		return nil, err
	}
	out.WriteString(");\n")
	if out.Len() > mostIndex {
		return nil, fmt.Errorf("the index of the search has %d bytes, the limit is %d", out.Len(), mostIndex)
	}
	return out.Bytes(), nil
}
