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
