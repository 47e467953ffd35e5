// Package refname has the rules for names of refs in Git. It is pure.
package refname

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Beginnings of the names of branches and tags.
const (
	Branches = "refs/heads/"
	Tags     = "refs/tags/"
)

const maxName = 1024

// Check returns an error unless name is that of a branch or tag, by the rules of git check-ref-format, and text that a
// file can have: UTF-8 without control characters.
func Check(name string) error {
	bad := func(why string) error { return fmt.Errorf("%.80q is not the name of a ref: %s", name, why) }
	switch {
	case len(name) > maxName:
		return bad("it is too long")
	case !strings.HasPrefix(name, Branches) && !strings.HasPrefix(name, Tags):
		return bad("it does not begin with refs/heads/ or refs/tags/")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isNoText):
		return bad("it has spaces or control characters")
	case strings.ContainsAny(name, "~^:?*[\\") || strings.Contains(name, "..") || strings.Contains(name, "@{"):
		return bad("it has .., @{ or one of ~^:?*[\\")
	case strings.HasSuffix(name, "."):
		return bad("it ends in .")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return bad("a part of it is empty, begins with . or ends in .lock")
		}
	}
	return nil
}

// isNoText reports whether a name with this character can be in no lock file.
func isNoText(r rune) bool {
	return r == ' ' || unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
}

// Matches reports whether a pattern means a ref: its whole name, or that after refs/heads/ or refs/tags/. * in it
// stands for any text.
func Matches(pattern, name string) bool {
	if glob(pattern, name) {
		return true
	}
	for _, prefix := range []string{Branches, Tags} {
		if short, ok := strings.CutPrefix(name, prefix); ok && glob(pattern, short) {
			return true
		}
	}
	return false
}

func glob(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], after
	}
}

// CheckPattern returns an error for a pattern that can mean no ref.
func CheckPattern(pattern string) error {
	name := strings.ReplaceAll(pattern, "*", "x")
	if !strings.HasPrefix(name, "refs/") {
		name = Branches + name
	}
	if Check(name) != nil {
		return fmt.Errorf("%.80q is not the name of a branch or tag, nor a pattern such as v1.*", pattern)
	}
	return nil
}

// IsID reports whether text is the name of an object: 40 lower-case hexadecimal digits. 40 zeros stand for none.
func IsID(text string) bool {
	return len(text) == 40 && strings.Trim(text, "0123456789abcdef") == "" && strings.Trim(text, "0") != ""
}
