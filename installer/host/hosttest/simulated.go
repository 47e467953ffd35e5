package hosttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// A Simulated is a machine that runs no programs: it answers a precheck's commands as root, so that hundreds of them
// fit into one process. An unknown command succeeds without output.
type Simulated struct {
	// Facts is the output of kkbundle-node facts.
	Facts []byte
	// Before, if not nil, is called before a command runs; a result other than 0 becomes the command's exit code.
	Before func(ctx context.Context, args []string, stderr io.Writer) int

	mu     sync.Mutex
	helper string // its path, "" if not installed
	sum    string
}

// HasHelper reports whether the helper is on the machine.
func (m *Simulated) HasHelper() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.helper != ""
}

// Exec is an Options.Exec.
func (m *Simulated) Exec(ctx context.Context, line string, stdin io.Reader, stdout, stderr io.Writer) int {
	args, err := Words(line)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 2
	}
	// sh -c LAUNCHER MARK env -i NAME=VALUE... PROGRAM...
	const launched = 6
	if len(args) < launched || args[4] != "env" || args[5] != "-i" {
		_, _ = fmt.Fprintf(stderr, "not launched: %q\n", args)
		return 2
	}
	for _, w := range []io.Writer{stdout, stderr} {
		_, _ = fmt.Fprintf(w, "%s %d\n", args[3], 1<<22) // an unused process id
	}
	args = args[launched:]
	for len(args) > 0 && strings.Contains(args[0], "=") {
		args = args[1:]
	}
	if m.Before != nil {
		if code := m.Before(ctx, args, stderr); code != 0 {
			return code
		}
	}
	return m.run(args, stdin, stdout)
}

func (m *Simulated) run(args []string, stdin io.Reader, stdout io.Writer) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	say := func(text string) int {
		_, _ = io.WriteString(stdout, text)
		return 0
	}
	const absent = 66
	args = withoutText(args)
	switch {
	case args[0] == "id":
		return say("0\n")
	case args[0] == "uname":
		return say("x86_64\n")
	case path.Base(args[0]) == "kkbundle-node" && args[1] == "facts":
		_, _ = io.Copy(io.Discard, stdin)
		return say(string(m.Facts))
	case args[0] == "helper-sum.sh":
		return say(m.sum + "\n")
	case args[0] == "write-file.sh":
		return m.put(args[1], args[3], stdin, stdout)
	case args[0] == "read-file.sh":
		return absent
	case args[0] == "test" && path.Base(args[2]) == "applied", args[0] == "test" && m.helper == "":
		return 1
	case args[0] == "rm", args[0] == "flock":
		m.helper, m.sum = "", ""
	}
	return 0
}

// withoutText makes NAME ARGUMENT... out of a script, sh -c TEXT NAME ARGUMENT..., as host.WithoutText does.
func withoutText(args []string) []string {
	if len(args) > 3 && args[0] == "sh" && args[1] == "-c" {
		return args[3:]
	}
	return args
}

// put stores a file, which is the helper.
func (m *Simulated) put(name, size string, stdin io.Reader, stdout io.Writer) int {
	sum := sha256.New()
	n, err := io.Copy(sum, stdin)
	if want, _ := strconv.ParseInt(size, 10, 64); err != nil || n != want {
		return 1
	}
	m.helper, m.sum = name, hex.EncodeToString(sum.Sum(nil))
	_, _ = io.WriteString(stdout, "changed\n")
	return 0
}

// Words returns the meaning of a line for a login shell, after the exec: the words of the command that a shell would
// run.
func Words(line string) ([]string, error) {
	const before = `exec sh -c 'eval "$(printf %b "$0")"' '`
	encoded, ok := strings.CutPrefix(line, before)
	if !ok || !strings.HasSuffix(encoded, "'") {
		return nil, fmt.Errorf("not a line of ours: %s", line)
	}
	octal := regexp.MustCompile(`\\0[0-7]{3}`)
	decoded := octal.ReplaceAllStringFunc(strings.TrimSuffix(encoded, "'"), func(s string) string {
		n, _ := strconv.ParseUint(s[2:], 8, 8)
		return string([]byte{byte(n)})
	})
	rest, ok := strings.CutPrefix(decoded, "exec ")
	if !ok {
		return nil, fmt.Errorf("no exec: %s", decoded)
	}
	var words []string
	var word strings.Builder
	for rest != "" {
		switch {
		case rest[0] == '\'':
			text, after, closed := strings.Cut(rest[1:], "'")
			if !closed {
				return nil, fmt.Errorf("an open quote: %s", decoded)
			}
			word.WriteString(text)
			rest = after
		case strings.HasPrefix(rest, `\'`):
			word.WriteByte('\'')
			rest = rest[2:]
		case rest[0] == ' ':
			words = append(words, word.String())
			word.Reset()
			rest = rest[1:]
		default:
			return nil, fmt.Errorf("a bare %q: %s", rest[0], decoded)
		}
	}
	return append(words, word.String()), nil
}
