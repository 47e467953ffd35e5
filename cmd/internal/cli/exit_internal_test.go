package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/download"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/adopt"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/handover"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/registry/dirlock"
)

// TestExitCodes holds the numbers: scripts depend on them.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	some := errors.New("some reason")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{some, 1},
		{&usage.Error{Err: some}, 64},
		{document.Problems{{File: "a", Message: "b"}}, 10},
		{&manifest.StaleError{}, 10},
		{&builder.InputError{Err: some}, 10},
		{&bundle.DamageError{}, 11},
		{&bundle.UnsupportedError{}, 11},
		{&precheck.BlockedError{}, 12},
		{&begin.OwnedError{}, 12},
		{&adopt.RefusedError{}, 12},
		{&adopt.DiffersError{}, 12},
		{&adopt.NotUndoneError{}, 12},
		{&handover.RefusedError{}, 12},
		{&reset.AdoptedError{}, 12},
		{&upgrade.PausedError{}, 25},
		{&host.UnreachableError{Err: some}, 13},
		{&host.SudoError{}, 13},
		{&fetch.Errors{}, 14},
		{&pushError{some}, 15},
		{&signatureError{tried: []error{&builder.InputError{Err: some}}}, 20},
		{&pushError{&bundle.DamageError{}}, 11}, // the registry is not to blame
		{&engine.TaskError{Err: some}, 16},
		{&engine.TaskError{Err: &host.UnreachableError{Err: some}}, 13},
		{errors.Join(errInterrupted, &fetch.Errors{}), 130},
		{&signalError{syscall.SIGHUP, errInterrupted}, 129},
		{&signalError{syscall.SIGPIPE, some}, 141},
		{&signalError{syscall.SIGTERM, errInterrupted}, 130},
		{fmt.Errorf("registry directory /srv: %w", &dirlock.LockedError{Dir: "/srv", PID: 7}), 17},
		{&download.BusyError{Path: "x.kkb"}, 17},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%T: got %d, want %d", c.err, got, c.want)
		}
		if c.err == nil {
			continue
		}
		if got := exitCode(fmt.Errorf("wrapped: %w", c.err)); got != c.want {
			t.Errorf("%T, wrapped: got %d, want %d", c.err, got, c.want)
		}
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupt signal received")
	cancel(cause)
	failed := &fetch.Errors{Failed: []*fetch.ItemError{{Kind: "file", Ref: "a", Err: errors.New("not there")}}}
	const line = "interrupted; run the same command again to continue"
	for want, err := range map[string]error{
		line:                               fmt.Errorf("write bundle: %w", cause),
		line + "\nfile a: not there":       errors.Join(cause, failed),
		line + "\ncould not tidy up after": errors.New("could not tidy up after"),
	} {
		if got := interrupted(ctx, err, nil); got.Error() != want || exitCode(got) != 130 {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := interrupted(ctx, fmt.Errorf("ask: %w", context.Canceled), nil); got.Error() != line {
		t.Errorf("got %q, want %q", got, line)
	}
	for _, git := range []bool{false, true} {
		got := interrupted(ctx, cause, &interruptedDownloadError{git})
		if !strings.Contains(got.Error(), "the cache keeps what was downloaded") || exitCode(got) != 130 ||
			strings.Contains(got.Error(), "no part of a Git repository") != git {
			t.Errorf("got %q after a download", got)
		}
	}
}
