package bundle

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxString bounds every string in index.json and kkbundle.json, in bytes.
const maxString = 64 << 10

// A scanner reads canonical JSON, in which each value has exactly one spelling: any other byte is an error. The first
// error is kept, so callers check once at the end of a value.
type scanner struct {
	b   []byte
	pos int
	err error
}

func newScanner(data []byte) *scanner { return &scanner{b: data} }

func (s *scanner) fail(want string) {
	if s.err == nil {
		s.err = fmt.Errorf("not canonical at byte %d: want %s", s.pos, want)
	}
}

// has consumes text if it comes next.
func (s *scanner) has(text string) bool {
	if s.err != nil || len(s.b)-s.pos < len(text) || string(s.b[s.pos:s.pos+len(text)]) != text {
		return false
	}
	s.pos += len(text)
	return true
}

// lit consumes text or fails.
func (s *scanner) lit(text string) {
	if !s.has(text) {
		s.fail(strconv.Quote(text))
	}
}

// integer reads a number from 0 to max without leading zeros.
func (s *scanner) integer(max int64) int64 {
	start := s.pos
	var n int64
	for s.err == nil && s.pos < len(s.b) && s.b[s.pos] >= '0' && s.b[s.pos] <= '9' {
		d := int64(s.b[s.pos] - '0')
		if n > (max-d)/10 {
			s.fail(fmt.Sprintf("a number of at most %d", max))
			return 0
		}
		n = n*10 + d
		s.pos++
	}
	if s.pos == start || (s.b[start] == '0' && s.pos > start+1) {
		s.pos = start
		s.fail("a number")
		return 0
	}
	return n
}

// text reads a string whose only escapes are \" and \\.
func (s *scanner) text() string {
	s.lit(`"`)
	start, escaped := s.pos, false
	for s.err == nil {
		if s.pos >= len(s.b) || s.pos-start > maxString {
			s.fail("the end of a string")
			return ""
		}
		switch s.b[s.pos] {
		case '"':
			raw := string(s.b[start:s.pos])
			s.pos++
			if escaped {
				raw = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(raw)
			}
			if err := checkText(raw); err != nil {
				s.fail("a string without " + err.Error())
			}
			return raw
		case '\\':
			if s.pos++; s.pos >= len(s.b) || (s.b[s.pos] != '"' && s.b[s.pos] != '\\') {
				s.fail(`\" or \\`)
				return ""
			}
			escaped = true
		}
		s.pos++
	}
	return ""
}

// sum reads a digest with its quotes.
func (s *scanner) sum() (d sum) {
	s.lit(`"sha256:`)
	d = s.hexSum()
	s.lit(`"`)
	return d
}

// hexSum reads the digits of a digest.
func (s *scanner) hexSum() (d sum) {
	if s.err != nil {
		return d
	}
	const n = len(d) * 2
	if len(s.b)-s.pos < n {
		s.fail("64 hexadecimal digits")
		return d
	}
	for _, c := range s.b[s.pos : s.pos+n] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			s.fail("64 lower-case hexadecimal digits")
			return d
		}
	}
	if _, err := hex.Decode(d[:], s.b[s.pos:s.pos+n]); err != nil {
		s.fail("64 lower-case hexadecimal digits")
		return d
	}
	s.pos += n
	return d
}

// end fails unless the input is consumed.
func (s *scanner) end() error {
	if s.err == nil && s.pos != len(s.b) {
		s.fail("the end")
	}
	return s.err
}

// checkText accepts text that canonical JSON writes with no escapes but \" and \\, and that a terminal shows on one
// line.
func checkText(text string) error {
	if len(text) > maxString {
		return fmt.Errorf("more than %d bytes", maxString)
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("invalid UTF-8")
	}
	for _, r := range text {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029' {
			return fmt.Errorf("control characters")
		}
	}
	return nil
}

// appendText writes a string that checkText accepts.
func appendText(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
