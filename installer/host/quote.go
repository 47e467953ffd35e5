package host

import "strings"

// quote makes one word of a shell line out of any string without zero bytes. Inside single quotes a POSIX shell takes
// every byte as it is, but for the quote; fish also looks at backslashes there, so they stand outside, too.
func quote(s string) string {
	var b strings.Builder
	b.Grow(len(s) + len("''"))
	b.WriteByte('\'')
	for i := range len(s) {
		switch c := s[i]; c {
		case '\'', '\\':
			b.WriteString(`'\`)
			b.WriteByte(c)
			b.WriteByte('\'')
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// shellLine makes the line that a login shell is given. exec leaves no shell behind between sshd and the command.
func shellLine(args []string) string {
	words := make([]string, 0, len(args)+1)
	words = append(words, "exec")
	for _, a := range args {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}
