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

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Host is a host as tasks see it. For a task that runs Here it has no host.
type Host struct {
	manifest.Host
	// IP is the node's address in the cluster.
	IP netip.Addr
	// IP6 is the node's IPv6 address in a cluster that has both families.
	IP6 netip.Addr
	// Arch is the host's architecture in Go's spelling.
	Arch string

	Conn   host.Host // nil if this run is not connected to the host
	Err    error     // why not, or what went wrong while connecting
	Failed bool      // a task of this run has failed on it
	Site   *Site
}

// MaxFile bounds what is read of a host's own files, and of what a command prints.
const MaxFile = 64 << 20

// Run runs a Run and expects nothing of its output.
func (t *Host) Run(ctx context.Context, args ...string) error {
	return t.Conn.Run(ctx, host.Cmd{Args: args})
}

// Feed runs a command with data on its standard input, where secrets travel.
func (t *Host) Feed(ctx context.Context, data []byte, args ...string) error {
	return t.Conn.Run(ctx, host.Cmd{Args: args, Stdin: bytes.NewReader(data)})
}

// Output returns what a command writes to its standard Output, also when it fails.
func (t *Host) Output(ctx context.Context, args ...string) ([]byte, error) {
	out := &capped.Buffer{Most: MaxFile}
	err := t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out})
	return out.Bytes(), err
}

// Test tells whether a command succeeds. An error means that it could not be found out.
func (t *Host) Test(ctx context.Context, args ...string) (bool, error) {
	return Succeeded(t.Run(ctx, args...))
}

func Succeeded(err error) (bool, error) {
	var failed *host.ExitError
	if errors.As(err, &failed) {
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
}

// Write puts files on the host that are not there as they shall be.
func (t *Host) Write(ctx context.Context, files ...File) error {
	for _, f := range files {
		ctx := DescribedAs(ctx, fmt.Sprintf("write %s (%04o, %d bytes)", f.Path, f.Mode, len(f.Data)))
		if _, err := host.WriteFile(ctx, t.Conn, f.Path, f.Mode, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// Edit gives a file of the host's own other content; its mode and owner stay.
func (t *Host) Edit(ctx context.Context, path string, data []byte) error {
	_, err := host.EditFile(DescribedAs(ctx, fmt.Sprintf("edit %s (%d bytes)", path, len(data))), t.Conn, path, data)
	return err
}

// HasFiles tells whether every one of the files HasFiles the content that it shall have.
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
		return false, err // that a file is missing is no error
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

// Systemctl runs Systemctl.
func (t *Host) Systemctl(ctx context.Context, args ...string) error {
	return t.Run(ctx, append([]string{"systemctl"}, args...)...)
}
