package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // scripts
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// HelperPath is the path of kkbundle-node on hosts.
const HelperPath = "/var/lib/kkbundle/bin/kkbundle-node"

// Arch returns the host's architecture in Go's spelling, "amd64" or "arm64". Another one is an error.
func Arch(ctx context.Context, h Host) (string, error) {
	ctx, cancel := within(ctx, firstTimeout)
	defer cancel()
	out, err := Output(ctx, h, "uname", "-m")
	if err != nil {
		return "", err
	}
	switch machine := strings.TrimSpace(string(out)); machine {
	case "x86_64", "amd64":
		return "amd64", nil
	case "aarch64", "arm64":
		return "arm64", nil
	default:
		return "", fmt.Errorf("%s: architecture %q is not supported: kkbundle installs on x86_64 and aarch64", h,
			oneLine(machine))
	}
}

// PutHelper installs this binary as HelperPath on the host, in directories that only root can enter, and checks that it
// runs. changed reports whether the previous one was different or missing.
func PutHelper(ctx context.Context, h Host, binary []byte) (changed bool, err error) {
	return putHelper(ctx, h, HelperPath, binary)
}

func putHelper(ctx context.Context, h Host, name string, binary []byte) (changed bool, err error) {
	ctx, patience := withPatience(ctx)
	defer patience.end()
	h = &watched{h, patience}
	sum := sha256.Sum256(binary)
	want := hex.EncodeToString(sum[:])
	if has, err := hasSum(ctx, h, name, want); has || err != nil {
		return false, err
	}
	failed := func(err error) error { return &HelperError{Path: name, Bytes: len(binary), Err: err} }
	dir := path.Dir(name)
	for _, args := range [][]string{
		{"mkdir", "-p", "-m", "0700", path.Dir(dir), dir},
		{"chown", "0:0", path.Dir(dir), dir},
		{"chmod", "0700", path.Dir(dir), dir},
	} {
		if err := h.Run(ctx, Cmd{Args: args}); err != nil {
			return false, failed(err)
		}
	}
	const mode = 0o700
	if changed, err = WriteFile(ctx, h, name, mode, binary); err != nil {
		return false, failed(err)
	}
	if has, err := hasSum(ctx, h, name, want); err != nil || !has {
		return false, errors.Join(err, fmt.Errorf("%s: %s differs from the written content: check the disk", h, name))
	}
	if _, err := Output(ctx, h, name, "version"); err != nil {
		return false, failed(err)
	}
	return changed, nil
}

//go:embed scripts/helper-sum.sh
var helperSumScript string

// hasSum reports whether a file that only root can change has a SHA-256.
func hasSum(ctx context.Context, h Host, name, want string) (bool, error) {
	out, err := Output(ctx, h, Script("helper-sum.sh", helperSumScript, name)...)
	if err != nil {
		return false, err
	}
	got, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte(" "))
	return string(got) == want, nil
}

// A HelperError means the helper could not be installed on a host, or does not run there.
type HelperError struct {
	Path  string
	Bytes int
	// Err names the host and the cause.
	Err error
}

// Error returns the cause with a prefix.
func (e *HelperError) Error() string { return fmt.Sprintf("%v: the helper %s", e.Err, e.failure()) }

func (e *HelperError) failure() string {
	if exit, ok := errors.AsType[*ExitError](e.Err); ok && exit.Args[0] == e.Path {
		return "does not run"
	}
	return "could not be put there"
}

// Unwrap returns the cause.
func (e *HelperError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *HelperError) Hint() string {
	text, dir := e.Err.Error(), path.Dir(e.Path)
	var hinted interface{ Hint() string }
	switch {
	case errors.As(e.Err, &hinted):
		return hinted.Hint()
	case strings.Contains(text, "No space left"), strings.Contains(text, "quota"):
		return fmt.Sprintf("free at least %d MiB in the filesystem of %s", e.Bytes>>20+1, dir)
	case strings.Contains(text, "Read-only"):
		return "the filesystem of " + dir + " is read-only: find the reason with dmesg, and mount it writable"
	case strings.Contains(text, "Permission denied"), e.failure() == "does not run":
		return "see that the filesystem of " + dir +
			" is not mounted noexec, and that no policy (SELinux, fapolicyd) forbids programs there"
	}
	return "check the host's message about " + dir
}

// A patience ends an operation without progress for firstTimeout.
type patience struct {
	timer *time.Timer
	end   context.CancelFunc
}

func withPatience(ctx context.Context) (context.Context, *patience) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(firstTimeout, func() { cancel(&SlowError{firstTimeout}) })
	return ctx, &patience{timer: timer, end: func() {
		timer.Stop()
		cancel(nil)
	}}
}

func (p *patience) renew() { p.timer.Reset(firstTimeout) }

// A watched host applies a patience to every command, and to the command's input.
type watched struct {
	Host
	patience *patience
}

// Run runs a command.
func (w *watched) Run(ctx context.Context, cmd Cmd) error {
	w.patience.renew()
	if cmd.Stdin != nil {
		cmd.Stdin = &watchedReader{cmd.Stdin, w.patience}
	}
	return w.Host.Run(ctx, cmd)
}

type watchedReader struct {
	io.Reader
	patience *patience
}

// Read continues reading.
func (r *watchedReader) Read(p []byte) (int, error) {
	r.patience.renew()
	return r.Reader.Read(p)
}
