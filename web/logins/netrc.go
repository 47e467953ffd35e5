package logins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/kkbundle/kkbundle/internal/capped"
)

const maxNetrc = 1 << 20

// Netrc holds logins by host name. The default entry is ignored: it would give the same password to every server named
// in a manifest or a foreign chart index. The parser is ours for that, and for the quoted values that curl reads.
type Netrc map[string]Login

// A Login is what netrc has for a host.
type Login struct{ User, Password string }

// ReadNetrc reads $NETRC or ~/.netrc; a missing file is an empty one.
func ReadNetrc() (Netrc, error) {
	path := os.Getenv("NETRC")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, nil // no home, no file
		}
		path = filepath.Join(home, ".netrc")
	}
	data, err := capped.ReadFile(path, maxNetrc)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // an empty one
	}
	if err != nil {
		return nil, fmt.Errorf("netrc: %w", err)
	}
	return parseNetrc(string(data)), nil
}

// parseNetrc reads the format of curl and ftp: a sequence of words in which "machine NAME" or "default" begin an entry,
// "login" and "password" are followed by their value, and "macdef" defines a macro up to the next empty line. Comments
// begin with #. A value in double quotes may have spaces, and quotes after a backslash.
func parseNetrc(text string) Netrc {
	out := Netrc{}
	host, current := "", Login{}
	inMacro := false
	keep := func() {
		if _, taken := out[host]; host != "" && !taken {
			out[host] = current
		}
	}
	key := "" // the key whose value comes next, on the same line or a later one
	for line := range strings.Lines(text) {
		if inMacro {
			inMacro = strings.TrimSpace(line) != ""
			continue
		}
		for word, rest := nextWord(line); word != ""; word, rest = nextWord(rest) {
			value := unquote(word)
			switch key {
			case "machine":
				host = strings.ToLower(value)
			case "login":
				current.User = value
			case "password":
				current.Password = value
			case "macdef":
				inMacro, rest = true, ""
			}
			if key != "" { // "account" has an unused value
				key = ""
				continue
			}
			switch {
			case strings.HasPrefix(word, "#"):
				rest = ""
			case word == "machine", word == "default":
				keep()
				host, current = "", Login{}
				if word == "machine" {
					key = word
				}
			case word == "login", word == "password", word == "account", word == "macdef":
				key = word
			}
		}
	}
	keep()
	return out
}

// nextWord cuts the first word off a line, with its quotes. It is "" at the end.
func nextWord(line string) (word, rest string) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, `"`) {
		i := strings.IndexFunc(line, unicode.IsSpace)
		if i < 0 {
			return line, ""
		}
		return line[:i], line[i:]
	}
	for i := 1; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '"':
			return line[:i+1], line[i+1:]
		}
	}
	return line, "" // without a second quote: the whole rest
}

// unquote removes the quotes of a word and resolves its backslashes.
func unquote(word string) string {
	inner, quoted := strings.CutPrefix(word, `"`)
	if !quoted {
		return word
	}
	var out strings.Builder
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c == '"':
			return out.String()
		case c == '\\' && i+1 < len(inner):
			i++
			if j := strings.IndexByte("nrt", inner[i]); j >= 0 {
				out.WriteByte("\n\r\t"[j])
			} else {
				out.WriteByte(inner[i])
			}
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// Find returns the login for a host name without port.
func (n Netrc) Find(host string) (Login, bool) {
	l := n[strings.ToLower(host)]
	return l, l.User != ""
}
