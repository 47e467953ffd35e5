package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
)

// envPassword names the variable with the password of private keys, as for cosign. A variable set to "" is the empty
// password.
const envPassword = "COSIGN_PASSWORD" //nolint:gosec // a name

// ErrNoTerminal means that standard input is not a terminal.
var ErrNoTerminal = errors.New("there is no terminal to ask on")

// AskSecret reads a line from the terminal without showing it. It stops when ctx ends.
func (c *Console) AskSecret(ctx context.Context, what string) (string, error) {
	if !IsTerminal(c.In) {
		return "", ErrNoTerminal
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	fd := int(c.In.(*os.File).Fd()) //nolint:forcetypeassert // checked above
	shown, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type answer struct {
		text []byte
		err  error
	}
	_, _ = fmt.Fprintf(c.Err, "%s: ", what)
	came := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		came <- answer{text, err}
	}()
	defer func() { _, _ = fmt.Fprintln(c.Err) }()
	select {
	case a := <-came:
		return string(a.text), a.err
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(fd, shown))
	}
}

// Ask reads a line from the terminal. It stops when ctx ends.
func (c *Console) Ask(ctx context.Context, what string) (string, error) {
	if !IsTerminal(c.In) {
		return "", ErrNoTerminal
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	type answer struct {
		text string
		err  error
	}
	_, _ = fmt.Fprintf(c.Err, "%s: ", what)
	came := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(c.In).ReadString('\n')
		came <- answer{strings.TrimRight(text, "\r\n"), err}
	}()
	select {
	case a := <-came:
		return a.text, a.err
	case <-ctx.Done():
		_, _ = fmt.Fprintln(c.Err)
		return "", context.Cause(ctx)
	}
}

// KeyPassword returns the password of a private key from standard input, the environment or the terminal. A new
// password is asked for twice.
func (c *Console) KeyPassword(ctx context.Context, stdin, new bool) ([]byte, error) {
	if stdin {
		text, err := readPasswordLine(c.In)
		return []byte(text), err
	}
	if text, ok := os.LookupEnv(envPassword); ok {
		return []byte(text), nil
	}
	text, err := c.AskSecret(ctx, "password of the private key")
	if errors.Is(err, ErrNoTerminal) {
		return nil, &usage.Error{Err: errors.New("the private key has a password: set $" + envPassword +
			", or use --password-stdin")}
	}
	if err != nil || !new {
		return []byte(text), err
	}
	again, err := c.AskSecret(ctx, "the same again")
	if err == nil && again != text {
		err = errors.New("the two passwords differ: nothing was written")
	}
	return []byte(text), err
}

// readPasswordLine reads one line of at most 4 KiB. It may be empty.
func readPasswordLine(r io.Reader) (string, error) {
	const most = 4 << 10
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", fmt.Errorf("read the password from standard input: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if len(line) > most {
		return "", usage.Errorf("the password on standard input is longer than %d bytes", most)
	}
	return strings.TrimSuffix(line, "\r"), nil
}
