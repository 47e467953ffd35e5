package plain

import (
	"strings"
	"unicode"
)

// Strip makes a host's text safe to display: without terminal control sequences (ECMA-48), without control characters
// other than line breaks and tabs, without text direction marks, and as valid UTF-8.
func Strip(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for s != "" {
		if s[0] == escape {
			s = s[sequence(s):]
			continue
		}
		i := strings.IndexByte(s, escape)
		if i < 0 {
			i = len(s)
		}
		b.WriteString(strings.Map(shown, strings.ToValidUTF8(s[:i], "\uFFFD")))
		s = s[i:]
	}
	return b.String()
}

const escape = 0x1b

func shown(r rune) rune {
	switch {
	case r == '\n', r == '\t':
		return r
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return -1
	}
	return r
}

// sequence returns the length of the control sequence at the start of s (ECMA-48): an escape and its parameters.
func sequence(s string) int {
	if len(s) == 1 {
		return 1
	}
	switch s[1] {
	case '[': // up to a final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
			if s[i] < 0x20 || s[i] > 0x7e {
				return i // truncated
			}
		}
		return len(s)
	case ']', 'P', 'X', '^', '_': // a string up to its terminator, on one line
		for i := 2; i < len(s); i++ {
			switch {
			case s[i] == '\a':
				return i + 1
			case s[i] == '\n':
				return i
			case s[i] == escape && i+1 < len(s) && s[i+1] == '\\':
				return i + 2
			}
		}
		return len(s)
	}
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f { // such as "(" when choosing a character set
		i++
	}
	return min(i+1, len(s))
}
