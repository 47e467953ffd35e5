package deb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	maxLine      = 1 << 20 // bytes
	maxParagraph = 8 << 20 // bytes of the fields in use
)

// paragraphs reads a control file (deb-control(5)) and calls each with the named fields of each paragraph. A field's
// lines are joined by newlines. The map is reused for the next paragraph.
func paragraphs(r io.Reader, fields []string, each func(map[string]string) error) error {
	wanted := make(map[string]string, len(fields))
	for _, f := range fields {
		wanted[strings.ToLower(f)] = f
	}
	p := &paragraph{fields: map[string]string{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	end := func() error {
		if !p.any {
			return nil
		}
		p.keep()
		err := each(p.fields)
		clear(p.fields)
		*p = paragraph{fields: p.fields}
		return err
	}
	for lines.Scan() {
		line := bytes.TrimRight(lines.Bytes(), " \t\r")
		switch {
		case len(line) == 0:
			if err := end(); err != nil {
				return err
			}
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if !p.any {
				return errors.New("a continuation line without a field")
			}
			if err := p.more(line); err != nil {
				return err
			}
		default:
			if err := p.field(line, wanted); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return end()
}

// A paragraph is the paragraph being read.
type paragraph struct {
	fields map[string]string
	any    bool // has at least one field
	size   int
	name   string // name of the field being read; "" for an unused one
	value  []byte
}

func (p *paragraph) field(line []byte, wanted map[string]string) error {
	p.keep()
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 {
		return fmt.Errorf("%.60q is not a field", line)
	}
	p.any = true
	known, ok := wanted[string(name)]
	if !ok {
		known = wanted[string(bytes.ToLower(name))]
	}
	if p.name = known; known == "" {
		return nil
	}
	if _, twice := p.fields[known]; twice {
		return fmt.Errorf("duplicate field %s", known)
	}
	if hasControl(line) {
		return fmt.Errorf("control characters in the field %s", known)
	}
	p.value = append(p.value[:0], bytes.TrimSpace(value)...)
	return nil
}

func (p *paragraph) more(line []byte) error {
	if p.name == "" {
		return nil
	}
	if hasControl(line) {
		return fmt.Errorf("control characters in the field %s", p.name)
	}
	if p.size += len(line); p.size > maxParagraph {
		return errors.New("paragraph too long")
	}
	p.value = append(append(p.value, '\n'), bytes.TrimSpace(line)...)
	return nil
}

// hasControl reports whether a line of a field in use has control characters. Descriptions may have them.
func hasControl(line []byte) bool {
	return bytes.ContainsFunc(line, func(r rune) bool { return r != '\t' && (r < ' ' || r == 0x7f) })
}

// keep stores the field just read.
func (p *paragraph) keep() {
	if p.name != "" {
		p.fields[p.name] = string(p.value)
		p.name = ""
	}
}
