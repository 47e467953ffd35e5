package document

import (
	"slices"
	"strings"
	"unicode"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// Or joins choices as in a sentence.
func Or(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// DidYouMean is suggest without the list of all known names, for messages that list them anyway.
func DidYouMean(name string, known []string) string {
	if best := plain.Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}

// isControl reports whether r would break a terminal, a log line or a configuration file.
func isControl(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

// suggest proposes the most similar of the known names, or lists them all.
func suggest(name string, known []string) string {
	if best := plain.Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	if len(known) == 0 {
		return ""
	}
	sorted := slices.Sorted(slices.Values(known))
	return "; known: " + strings.Join(sorted, ", ")
}

// IsName reports whether s is a DNS label or, with dots, a DNS subdomain: lower case letters, digits and hyphens.
func IsName(s string, dots bool) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := []string{s}
	if dots {
		labels = strings.Split(s, ".")
	}
	return !slices.ContainsFunc(labels, func(l string) bool {
		return l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || !Only(l, "-")
	})
}

// Only reports whether s has only lower case letters, digits and the given characters.
func Only(s, others string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.Contains(others, s[i:i+1]) {
			return false
		}
	}
	return true
}
