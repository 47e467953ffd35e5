package installer

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

// A Target is a host as tasks see it. For a task that runs Here it has no host.
type Target struct {
	manifest.Host
	// IP is the node's address in the cluster.
	IP netip.Addr
	// IP6 is the node's IPv6 address in a cluster that has both families.
	IP6 netip.Addr
	// Arch is the host's architecture in Go's spelling.
	Arch string

	on      host.Host // nil if this run is not connected to the host
	failure error     // why not, or what went wrong while connecting
	fell    bool      // a task of this run has failed on it
	run     *Site
}

// maxFile bounds what is read of a host's own files, and of what a command prints.
const maxFile = 64 << 20

// command runs a command and expects nothing of its output.
func (t *Target) command(ctx context.Context, args ...string) error {
	return t.on.Run(ctx, host.Cmd{Args: args})
}

// feed runs a command with data on its standard input, where secrets travel.
func (t *Target) feed(ctx context.Context, data []byte, args ...string) error {
	return t.on.Run(ctx, host.Cmd{Args: args, Stdin: bytes.NewReader(data)})
}

// output returns what a command writes to its standard output, also when it fails.
func (t *Target) output(ctx context.Context, args ...string) ([]byte, error) {
	out := &capped.Buffer{Most: maxFile}
	err := t.on.Run(ctx, host.Cmd{Args: args, Stdout: out})
	return out.Bytes(), err
}

// test tells whether a command succeeds. An error means that it could not be found out.
func (t *Target) test(ctx context.Context, args ...string) (bool, error) {
	return succeeded(t.command(ctx, args...))
}

func succeeded(err error) (bool, error) {
	var failed *host.ExitError
	if errors.As(err, &failed) {
		return false, nil
	}
	return err == nil, err
}

// read returns a file of the host; the error is fs.ErrNotExist if there is none.
func (t *Target) read(ctx context.Context, path string) ([]byte, error) {
	return host.ReadFile(describedAs(withoutOutput(ctx), "read "+path), t.on, path, maxFile)
}

// A textFile is a small file that is written on a host as a whole.
type textFile struct {
	path string
	mode fs.FileMode
	data []byte
}

// write puts files on the host that are not there as they shall be.
func (t *Target) write(ctx context.Context, files ...textFile) error {
	for _, f := range files {
		ctx := describedAs(ctx, fmt.Sprintf("write %s (%04o, %d bytes)", f.path, f.mode, len(f.data)))
		if _, err := host.WriteFile(ctx, t.on, f.path, f.mode, f.data); err != nil {
			return err
		}
	}
	return nil
}

// edit gives a file of the host's own other content; its mode and owner stay.
func (t *Target) edit(ctx context.Context, path string, data []byte) error {
	_, err := host.EditFile(describedAs(ctx, fmt.Sprintf("edit %s (%d bytes)", path, len(data))), t.on, path, data)
	return err
}

// has tells whether every one of the files has the content that it shall have.
func (t *Target) has(ctx context.Context, files ...textFile) (bool, error) {
	if len(files) == 0 {
		return true, nil
	}
	args := []string{"sha256sum", "--"}
	for _, f := range files {
		args = append(args, f.path)
	}
	out := &capped.Buffer{Most: maxFile}
	if _, err := succeeded(t.on.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil {
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
		sum := sha256.Sum256(f.data)
		if found[f.path] == hex.EncodeToString(sum[:]) {
			continue
		}
		all = false
		becauseOf(ctx, f.path, found[f.path] != "")
	}
	return all, nil
}

// systemctl runs systemctl.
func (t *Target) systemctl(ctx context.Context, args ...string) error {
	return t.command(ctx, append([]string{"systemctl"}, args...)...)
}
