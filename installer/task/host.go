package task

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Host is a task's toolbox for one machine: it runs commands and reads, writes and removes files there. A task that
// runs Here gets a Host without a connection.
type Host struct {
	manifest.Host
	IP   netip.Addr // in the cluster
	IP6  netip.Addr // in a cluster with both families
	Arch string     // in Go's spelling

	Conn   host.Host // nil if this run is not connected to the host
	Err    error     // the reason of a failed connection
	Failed bool      // a task of this run has failed on the host
	Site   *Site

	cutOff bool // the registry gave no file to the host, which asks it for none again in this run
}

// MaxFile limits the size of files read from a host and of a command's output.
const MaxFile = 64 << 20

// Run runs a command and discards its output.
func (t *Host) Run(ctx context.Context, args ...string) error {
	return t.Conn.Run(ctx, host.Cmd{Args: args})
}

// Feed runs a command with data on its standard input. Secrets go this way, never as arguments.
func (t *Host) Feed(ctx context.Context, data []byte, args ...string) error {
	return t.Conn.Run(ctx, host.Cmd{Args: args, Stdin: bytes.NewReader(data)})
}

// Output runs a command and returns its standard output, even if it fails.
func (t *Host) Output(ctx context.Context, args ...string) ([]byte, error) {
	out := &capped.Buffer{Most: MaxFile}
	err := t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out})
	return out.Bytes(), err
}

// Test reports whether a command succeeds. An error means that the command could not be run.
func (t *Host) Test(ctx context.Context, args ...string) (bool, error) {
	return Succeeded(t.Run(ctx, args...))
}

// Succeeded reports whether err is nil. It returns other errors than a command's exit code.
func Succeeded(err error) (bool, error) {
	if _, ok := errors.AsType[*host.ExitError](err); ok {
		return false, nil
	}
	return err == nil, err
}

// Read returns a file of the host; the error is fs.ErrNotExist if there is none.
func (t *Host) Read(ctx context.Context, path string) ([]byte, error) {
	return host.ReadFile(DescribedAs(WithoutOutput(ctx), "read "+path), t.Conn, path, MaxFile)
}

// A File is a small file that is written on a host as a whole.
type File struct {
	Path string
	Mode fs.FileMode
	Data []byte
	// Live means that its program reads the file at each use: a change needs no restart. LiveNew means the same also
	// of a file that is new: it belongs to root, and its program looks for it at each use.
	Live, LiveNew bool
}

func (f File) isLive() bool { return f.Live || f.LiveNew }

// Write writes the files that are missing or different on the host.
func (t *Host) Write(ctx context.Context, files ...File) error {
	for _, f := range files {
		ctx := DescribedAs(ctx, fmt.Sprintf("write %s (%04o, %d bytes)", f.Path, f.Mode, len(f.Data)))
		if _, err := host.WriteFile(ctx, t.Conn, f.Path, f.Mode, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// Edit replaces the content of a file that belongs to the host. It keeps mode and owner.
func (t *Host) Edit(ctx context.Context, path string, data []byte) error {
	_, err := host.EditFile(DescribedAs(ctx, fmt.Sprintf("edit %s (%d bytes)", path, len(data))), t.Conn, path, data)
	return err
}

// HasFiles reports whether the host has all the files with this content. It does not compare modes.
func (t *Host) HasFiles(ctx context.Context, files ...File) (bool, error) {
	if len(files) == 0 {
		return true, nil
	}
	args := []string{"sha256sum", "--"}
	for _, f := range files {
		args = append(args, f.Path)
	}
	out := &capped.Buffer{Most: MaxFile}
	if _, err := Succeeded(t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil {
		return false, err // a missing file is no error
	}
	found := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if sum, path, ok := strings.Cut(strings.TrimRight(line, "\n"), "  "); ok {
			found[path] = sum
		}
	}
	all := true
	for _, f := range files {
		sum := sha256.Sum256(f.Data)
		if found[f.Path] == hex.EncodeToString(sum[:]) {
			continue
		}
		all = false
		BecauseOfFile(ctx, f.Path, found[f.Path] != "")
	}
	return all, nil
}

// Systemctl runs systemctl.
func (t *Host) Systemctl(ctx context.Context, args ...string) error {
	return t.Run(ctx, append([]string{"systemctl"}, args...)...)
}
