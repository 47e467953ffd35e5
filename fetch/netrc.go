package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const maxNetrc = 1 << 20

// netrc has logins by host name. The default entry is not used: it would give the same password to every server that a
// manifest, or somebody's index of charts, names.
type netrc map[string]login

type login struct{ user, password string }

// readNetrc reads $NETRC or ~/.netrc; a missing file is an empty one.
func readNetrc() (netrc, error) {
	path := os.Getenv("NETRC")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, nil // no home, no file
		}
		path = filepath.Join(home, ".netrc")
	}
	data, err := readFile(path, maxNetrc)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // an empty one
	}
	if err != nil {
		return nil, fmt.Errorf("netrc: %w", err)
	}
	return parseNetrc(string(data)), nil
}

// parseNetrc reads what curl and ftp write: words of which "machine NAME" or "default" begin an entry, "login" and
// "password" are followed by their value, and "macdef" defines a macro up to the next empty line. Comments begin with #.
func parseNetrc(text string) netrc {
	out := netrc{}
	host, current := "", login{}
	inMacro := false
	keep := func() {
		if _, taken := out[host]; host != "" && !taken {
			out[host] = current
		}
	}
	for line := range strings.Lines(text) {
		if inMacro {
			inMacro = strings.TrimSpace(line) != ""
			continue
		}
		words := strings.Fields(line)
		for i := 0; i < len(words); i++ {
			value := ""
			if i+1 < len(words) {
				value = words[i+1]
			}
			switch word := words[i]; {
			case strings.HasPrefix(word, "#"):
				i = len(words)
			case word == "machine":
				keep()
				host, current = strings.ToLower(value), login{}
				i++
			case word == "default":
				keep()
				host, current = "", login{}
			case word == "login":
				current.user = value
				i++
			case word == "password":
				current.password = value
				i++
			case word == "account":
				i++
			case word == "macdef":
				inMacro = true
				i = len(words)
			}
		}
	}
	keep()
	return out
}

// find returns the login for a host name without port.
func (n netrc) find(host string) (login, bool) {
	l := n[strings.ToLower(host)]
	return l, l.user != ""
}
