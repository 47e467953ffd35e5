package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// envPassword is where cosign, too, takes the password of keys from; set and empty, it is the empty password.
const envPassword = "COSIGN_PASSWORD" //nolint:gosec // a name

// errNoTerminal says that nobody can be asked.
var errNoTerminal = errors.New("there is no terminal to ask on")

// askSecret asks on the terminal, without showing what is typed. It gives up when ctx ends.
func (g *globals) askSecret(ctx context.Context, what string) (string, error) {
	if !isTerminal(g.In) {
		return "", errNoTerminal
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	fd := int(g.In.(*os.File).Fd()) //nolint:forcetypeassert // isTerminal says so
	shown, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type answer struct {
		text []byte
		err  error
	}
	_, _ = fmt.Fprintf(g.Err, "%s: ", what)
	came := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		came <- answer{text, err}
	}()
	defer func() { _, _ = fmt.Fprintln(g.Err) }()
	select {
	case a := <-came:
		return string(a.text), a.err
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(fd, shown))
	}
}

// keyPassword is the password of a private key: from standard input, from the environment, or asked for; twice where it is a
// new one.
func (g *globals) keyPassword(ctx context.Context, stdin, new bool) ([]byte, error) {
	if stdin {
		text, err := readPasswordLine(g.In)
		return []byte(text), err
	}
	if text, ok := os.LookupEnv(envPassword); ok {
		return []byte(text), nil
	}
	text, err := g.askSecret(ctx, "password of the private key")
	if errors.Is(err, errNoTerminal) {
		return nil, &usageError{errors.New("the private key has a password: set $" + envPassword + ", or use --password-stdin")}
	}
	if err != nil || !new {
		return []byte(text), err
	}
	again, err := g.askSecret(ctx, "the same again")
	if err == nil && again != text {
		err = errors.New("the two passwords differ: nothing was written")
	}
	return []byte(text), err
}

// readPasswordLine reads one line of at most 4 KiB, which may be empty.
func readPasswordLine(r io.Reader) (string, error) {
	const most = 4 << 10
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", fmt.Errorf("read the password from standard input: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if len(line) > most {
		return "", &usageError{fmt.Errorf("the password on standard input is longer than %d bytes", most)}
	}
	return strings.TrimSuffix(line, "\r"), nil
}
