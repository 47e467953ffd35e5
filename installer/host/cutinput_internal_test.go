package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pace"
)

// TestCutInput has a limit that the context has no time for: the command must not take the first part of its input for
// all of it.
func TestCutInput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	s := &eater{}
	h := &machine{name: "node1", start: s, pace: pace.PerSecond(pace.Least)}
	err := h.Run(ctx, Cmd{Args: []string{"cat"}, Stdin: bytes.NewReader(make([]byte, 1<<20))})
	if !errors.Is(err, context.DeadlineExceeded) || s.complete {
		t.Errorf("got %v, and an input that ended: %t", err, s.complete)
	}
}

// An eater starts programs that read all their input. complete reports whether it came to its end.
type eater struct{ complete bool }

func (s *eater) start(_ context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	mark := args[slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "kkbundle-") })]
	in, stdin := io.Pipe()
	p := &eating{lateProcess: lateProcess{stdin: stdin, ended: make(chan struct{})}, eater: s, in: in}
	go func() {
		defer close(p.ended)
		for _, w := range []io.Writer{stderr, stdout} {
			_, _ = fmt.Fprintf(w, "%s 1\n", mark) // process 1 is never killed
		}
		_, err := io.Copy(io.Discard, in)
		s.complete = err == nil
	}()
	return p, nil
}

func (s *eater) close() error { return nil }

type eating struct {
	lateProcess
	eater *eater
	in    *io.PipeReader
}

func (p *eating) Kill() { _ = p.in.Close() }

func (p *eating) Wait() (int, error) {
	const killed = 137
	if <-p.ended; p.eater.complete {
		return 0, nil
	}
	return killed, nil
}
