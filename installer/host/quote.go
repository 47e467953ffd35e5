package host

import (
	"fmt"
	"strings"
)

// quote turns any string without zero bytes into one word of a POSIX shell's line.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// shellLine returns the line for a login shell of any kind. Shells differ in the literal characters between single
// quotes: not backslashes in fish, not line breaks and exclamation marks in csh. So the line for a POSIX shell is
// passed with those characters encoded for printf. exec leaves no login shell between sshd and the command.
func shellLine(args []string) string {
	words := make([]string, 0, len(args)+1)
	words = append(words, "exec")
	for _, a := range args {
		words = append(words, quote(a))
	}
	return `exec sh -c 'eval "$(printf %b "$0")"' '` + encode(strings.Join(words, " ")) + "'"
}

// encode encodes special characters for printf's %b.
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
