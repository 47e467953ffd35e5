package host

import (
	"fmt"
	"strings"
)

// quote makes one word of a POSIX shell's line out of any string without zero bytes.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// shellLine makes the line that a login shell is given, whichever it is. Shells differ in what stands for itself between
// single quotes: not backslashes in fish, not line breaks and exclamation marks in csh. So the line for a POSIX shell
// goes to one with all of that encoded for printf. exec leaves no login shell behind between sshd and the command.
func shellLine(args []string) string {
	words := make([]string, 0, len(args)+1)
	words = append(words, "exec")
	for _, a := range args {
		words = append(words, quote(a))
	}
	return `exec sh -c 'eval "$(printf %b "$0")"' '` + encode(strings.Join(words, " ")) + "'"
}

// encode writes what is not plain text in the way of printf's %b.
func encode(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c > '~', c == '\'', c == '\\', c == '!':
			fmt.Fprintf(&b, `\0%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
