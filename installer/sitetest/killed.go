//go:build linux

package sitetest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
)

// A Lifetime is how many commands kkbundle lives for: with the last one's answer it is gone (kill -9), and nothing more
// reaches any host.
type Lifetime struct {
	mu   sync.Mutex
	Left int
	// end, if set, ends the context of the killed run, which would wait for answers.
	End func()
}

// ErrKilled is the error of every command after the end.
var ErrKilled = errors.New("kkbundle was killed")

// spend reports whether a command is left, and whether it is the last.
func (l *Lifetime) spend() (alive, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Left--
	return l.Left >= 0, l.Left == 0
}

// A MortalHost is a host as a kkbundle sees it that will be killed.
type MortalHost struct {
	host.Host
	Life *Lifetime
}

// Run runs a command while kkbundle lives.
func (h *MortalHost) Run(ctx context.Context, cmd host.Cmd) error {
	alive, last := h.Life.spend()
	var err error
	if alive {
		err = h.Host.Run(ctx, cmd)
	}
	if alive && !last {
		return err
	}
	if h.Life.End != nil {
		h.Life.End()
	}
	return ErrKilled // after the last command, too: the host has done it, and nobody knows
}

// OneOf is how far apart the commands are after which a run is killed: each has its turn with KKBUNDLE_BIG=1, one of
// n without. With -short, the test is skipped.
func OneOf(t *testing.T, n int) int {
	t.Helper()
	switch {
	case os.Getenv("KKBUNDLE_BIG") == "1":
		return 1
	case testing.Short():
		t.Skip("kills a run again and again")
	}
	return n
}
