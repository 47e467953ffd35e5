package host

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/host/hosttest"
)

// TestUnkillable has a command that does not end when it is killed, as one that waits for a disk. Here it runs in a
// process namespace of its own, where we do not find it; OpenSSH's server waits for it all the same. It ends when the
// test has taken its directory away.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Setup: `printf '#!/bin/sh\nexec unshare --pid --fork sh "$@"\n' >"$DIR/walled"
chmod 755 "$DIR/walled"
usermod --shell "$DIR/walled" root`})
	h, err := Dial(t.Context(), SSHOptions{
		Name: "node1", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	h.(*machine).start.(*pool).options.Patience = time.Millisecond // nothing that ends is killed here

	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("it hangs")
	printed, out := io.Pipe()
	go func() {
		_, _ = printed.Read(make([]byte, 1))
		cancel(reason)
		_, _ = io.Copy(io.Discard, printed)
	}()
	err = h.Run(ctx, Cmd{
		Args:   []string{"sh", "-c", `echo x; while [ -e "$1" ]; do sleep 1; done`, "sh", s.Dir},
		Stdout: out,
	})
	if !errors.Is(err, reason) {
		t.Errorf("got %v, want %v", err, reason)
	}
	var unreachable *UnreachableError
	err = h.Run(t.Context(), Cmd{Args: []string{"true"}})
	if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("got %v, want that the host is lost", err)
	}
}
