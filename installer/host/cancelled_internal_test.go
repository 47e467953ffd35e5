package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestCancelledAsItStarts has a run cancelled between the start of a command and its first line. The command answers an
// input that ends before anything came, while our side still writes: both sides must get the reason, and neither may wait
// for the other.
func TestCancelledAsItStarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("interrupted")
	h := &machine{name: "node1", start: lateStarter{func() { cancel(reason) }}}
	s := Open(ctx, h, "receive")
	if _, err := s.Write([]byte("a question")); !errors.Is(err, reason) {
		t.Errorf("writing: %v, want %v", err, reason)
	}
	if answer, err := io.ReadAll(s); string(answer) != "no question came" || !errors.Is(err, reason) {
		t.Errorf("reading: %q, %v, want %v", answer, err, reason)
	}
	if err := s.Close(); !errors.Is(err, reason) {
		t.Errorf("closing: %v, want %v", err, reason)
	}
}

// A lateStarter starts programs that print nothing until their input ends. begun is called first.
type lateStarter struct{ begun func() }

func (s lateStarter) start(_ context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	mark := args[slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "kkbundle-") })]
	s.begun()
	in, stdin := io.Pipe()
	p := &lateProcess{stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, in)
		for _, w := range []io.Writer{stderr, stdout} {
			_, _ = fmt.Fprintf(w, "%s 1\n", mark) // process 1 is never killed
		}
		_, _ = io.WriteString(stdout, "no question came")
	}()
	return p, nil
}

func (s lateStarter) close() error { return nil }

type lateProcess struct {
	stdin *io.PipeWriter
	ended chan struct{}
}

func (p *lateProcess) Stdin() io.WriteCloser { return p.stdin }
func (p *lateProcess) Wait() (int, error)    { <-p.ended; return 0, nil }
func (p *lateProcess) Kill()                 {}
