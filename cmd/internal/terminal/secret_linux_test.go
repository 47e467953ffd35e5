package terminal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
)

// A prompted does something when it is first written to.
type prompted struct {
	bytes.Buffer
	then func()
}

func (p *prompted) Write(b []byte) (int, error) {
	p.then()
	return p.Buffer.Write(b)
}

// TestAskSecret asks on a real terminal: what is typed is not printed, and Ctrl-C is not
// waited out.
func TestAskSecret(t *testing.T) {
	screen, terminal := openTerminal(t, 120)
	t.Setenv(envPassword, "from the environment")
	ctx, cancel := context.WithCancel(t.Context())
	shown := &prompted{then: func() {}}
	g := NewConsole(Streams{In: terminal, Err: shown})
	if got, err := g.KeyPassword(ctx, false, true); err != nil || string(got) != "from the environment" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := io.WriteString(screen, "open sesame\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := g.AskSecret(ctx, "password"); err != nil || got != "open sesame" {
		t.Errorf("%q, %v", got, err)
	}
	shown.then = cancel
	if _, err := g.AskSecret(ctx, "password"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if got := shown.String(); got != "password: \npassword: \n" {
		t.Errorf("shown: %q", got)
	}
	if _, err := g.AskSecret(ctx, "password"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before: %v", err)
	}
}
