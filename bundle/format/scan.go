package format

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxString bounds every string in index.json and kkbundle.json, in bytes.
const MaxString = 64 << 10

// A Scanner reads canonical JSON, in which each value has exactly one spelling: any other byte is an error. The first
// error is kept, so callers check once at the end of a value.
type Scanner struct {
	b   []byte
	pos int
	Err error // the first error
}

// NewScanner returns a scanner at the start of data.
func NewScanner(data []byte) *Scanner { return &Scanner{b: data} }

// Fail records an error at this position, unless there is one.
func (s *Scanner) Fail(want string) {
	if s.Err == nil {
		s.Err = fmt.Errorf("not canonical at byte %d: want %s", s.pos, want)
	}
}

// Has consumes text if it comes next.
func (s *Scanner) Has(text string) bool {
	if s.Err != nil || len(s.b)-s.pos < len(text) || string(s.b[s.pos:s.pos+len(text)]) != text {
		return false
	}
	s.pos += len(text)
	return true
}

// Lit consumes text or fails.
func (s *Scanner) Lit(text string) {
	if !s.Has(text) {
		s.Fail(strconv.Quote(text))
	}
}

// Integer reads a number from 0 to max without leading zeros.
func (s *Scanner) Integer(max int64) int64 {
	start := s.pos
	var n int64
	for s.Err == nil && s.pos < len(s.b) && s.b[s.pos] >= '0' && s.b[s.pos] <= '9' {
		d := int64(s.b[s.pos] - '0')
		if n > (max-d)/10 {
			s.Fail(fmt.Sprintf("a number of at most %d", max))
			return 0
		}
		n = n*10 + d
		s.pos++
	}
	if s.pos == start || (s.b[start] == '0' && s.pos > start+1) {
		s.pos = start
		s.Fail("a number")
		return 0
	}
	return n
}

// Text reads a string whose only escapes are \" and \\.
func (s *Scanner) Text() string {
	s.Lit(`"`)
	start, escaped := s.pos, false
	for s.Err == nil {
		if s.pos >= len(s.b) || s.pos-start > MaxString {
			s.Fail("the end of a string")
			return ""
		}
		switch s.b[s.pos] {
		case '"':
			raw := string(s.b[start:s.pos])
			s.pos++
			if escaped {
				raw = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(raw)
			}
			if err := CheckText(raw); err != nil {
				s.Fail("a string without " + err.Error())
			}
			return raw
		case '\\':
			if s.pos++; s.pos >= len(s.b) || (s.b[s.pos] != '"' && s.b[s.pos] != '\\') {
				s.Fail(`\" or \\`)
				return ""
			}
			escaped = true
		}
		s.pos++
	}
	return ""
}

// Sum reads a digest with its quotes.
func (s *Scanner) Sum() (d Sum) {
	s.Lit(`"sha256:`)
	d = s.HexSum()
	s.Lit(`"`)
	return d
}

// HexSum reads the digits of a digest.
func (s *Scanner) HexSum() (d Sum) {
	if s.Err != nil {
		return d
	}
	const n = len(d) * 2
	if len(s.b)-s.pos < n {
		s.Fail("64 hexadecimal digits")
		return d
	}
	for _, c := range s.b[s.pos : s.pos+n] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			s.Fail("64 lower-case hexadecimal digits")
			return d
		}
	}
	if _, err := hex.Decode(d[:], s.b[s.pos:s.pos+n]); err != nil {
		s.Fail("64 lower-case hexadecimal digits")
		return d
	}
	s.pos += n
	return d
}

// End fails unless the input is consumed.
func (s *Scanner) End() error {
	if s.Err == nil && s.pos != len(s.b) {
		s.Fail("the end")
	}
	return s.Err
}

// CheckText accepts text that canonical JSON writes with no escapes but \" and \\, and that a terminal shows on one
// line.
func CheckText(text string) error {
	if len(text) > MaxString {
		return fmt.Errorf("more than %d bytes", MaxString)
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

// AppendText writes a string that CheckText accepts.
func AppendText(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
