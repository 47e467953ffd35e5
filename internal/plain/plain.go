// Package plain writes for people: text of others without control characters, sizes, the names nearest to a mistyped
// one, and errors with their remedy.
package plain

import (
	"fmt"
	"strings"
	"unicode"
)

// Line returns s as one line. Line breaks and tabs become spaces. Every other character that cannot be printed, which
// could steer a terminal or turn the direction of text, becomes U+FFFD.
func Line(s string) string { return strings.Map(inLine, s) }

// Lines returns s like Line, but keeps line breaks and tabs.
func Lines(s string) string { return strings.Map(inLines, s) }

func inLine(r rune) rune {
	if r == '\n' || r == '\t' || r == '\r' {
		return ' '
	}
	return inLines(r)
}

func inLines(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return unicode.ReplacementChar
}

// Clip returns the first most characters of s, and an ellipsis if there are more.
func Clip(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "…"
		}
	}
	return s
}

// Size returns n bytes in the binary units that du and docker use.
func Size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, exp := float64(n)/unit, 0
	for ; v >= unit; v /= unit {
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[exp])
}

// Few returns the first most of a list, and counts the others: "a, b and 3 more".
func Few(list []string, most int) string {
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Count returns a number of things, whose plural is regular.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if before, ok := strings.CutSuffix(what, "y"); ok && before != "" && !strings.ContainsAny(before[len(before)-1:], "aeou") {
		return fmt.Sprintf("%d %sies", n, before)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
