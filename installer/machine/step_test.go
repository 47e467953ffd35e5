//go:build linux

package machine

import (
	"context"
	"io"
	"net/netip"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fileConn is a connection to a host with one file.
type fileConn struct{ text string }

func (c *fileConn) String() string { return "node1" }
func (c *fileConn) Close() error   { return nil }

// Run replaces the file by the input, or else prints it.
func (c *fileConn) Run(_ context.Context, cmd host.Cmd) error {
	if cmd.Stdin == nil {
		if cmd.Args[0] == "grep" { // cloud-init has no configuration on the host
			return &host.ExitError{Args: cmd.Args, Code: 1}
		}
		_, err := io.WriteString(cmd.Stdout, c.text)
		return err
	}
	data, err := io.ReadAll(cmd.Stdin)
	c.text = string(data)
	_, _ = io.WriteString(cmd.Stdout, "changed\n")
	return err
}

// TestStep runs a step with a literal Site and a fake connection.
func TestStep(t *testing.T) {
	t.Parallel()
	conn := &fileConn{"127.0.0.1 localhost\n"}
	site := &task.Site{Cluster: &manifest.Cluster{}}
	node := &task.Host{Host: manifest.Host{Name: "node1"}, IP: netip.MustParseAddr("10.0.0.3"), Conn: conn, Site: site}
	site.Hosts = []*task.Host{node}
	step := HostsTask()
	ctx, why := task.WithReasons(t.Context())
	if done, err := step.Done(ctx, node); err != nil || done || why.String() != `/etc/hosts lacks "10.0.0.3 node1"` {
		t.Errorf("before: got %v, %v, %s", done, err, why)
	}
	if err := step.Do(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if want := "127.0.0.1 localhost\n# BEGIN kkbundle\n10.0.0.3 node1\n# END kkbundle\n"; conn.text != want {
		t.Errorf("got %q, want %q", conn.text, want)
	}
	if done, err := step.Done(t.Context(), node); err != nil || !done {
		t.Errorf("after: got %v, %v", done, err)
	}
}
