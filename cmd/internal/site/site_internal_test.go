package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestDialThroughBastions takes an inventory by its word: two hosts behind a chain of bastions, each with its own
// login.
func TestDialThroughBastions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the server inside the process has its rights")
	}
	forward := func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
	outer := hosttest.Start(t, hosttest.Options{Forward: forward, Password: "outer"})
	inner := hosttest.Start(t, hosttest.Options{Forward: forward, Address: "127.0.0.2"})
	one := hosttest.Start(t, hosttest.Options{Address: "127.0.0.3"})
	two := hosttest.Start(t, hosttest.Options{Address: "127.0.0.4"})
	dir := t.TempDir()
	known := filepath.Join(dir, "known_hosts")
	var all []byte
	for _, s := range []*hosttest.Server{outer, inner, one, two} {
		data, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	if err := errors.Join(os.WriteFile(known, all, 0o600), os.WriteFile(dir+"/password", []byte("outer\n"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	inventory := fmt.Sprintf(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  outer: {address: %s, internalIPv4: 10.0.0.8, ssh: {port: %d, passwordFile: %s/password}}
  inner: {address: %s, internalIPv4: 10.0.0.9, ssh: {port: %d, key: %s}}
  node1: {address: %s, internalIPv4: 10.0.0.1, ssh: {port: %d, key: %s, bastion: "outer,inner"}}
  node2: {address: %s, internalIPv4: 10.0.0.2, ssh: {port: %d, key: %s, bastion: "outer,inner"}}
groups: {kube_control_plane: [node1], kube_worker: [node2]}
`, outer.Host, outer.Port, dir, inner.Host, inner.Port, inner.KeyFile, one.Host, one.Port, one.KeyFile,
		two.Host, two.Port, two.KeyFile)
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(inventory))
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{Flags: Flags{knownHosts: []string{known}}, console: terminal.NewConsole(terminal.Streams{
		Out: io.Discard,
		Err: io.Discard,
	}), bastions: host.NewBastions()}
	for _, h := range inv.Hosts() {
		if len(h.Hops) == 0 {
			continue
		}
		on, err := s.dial(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = on.Close() }()
		if out, err := host.Output(t.Context(), on, "echo", h.Name); err != nil ||
			!bytes.Equal(out, []byte(h.Name+"\n")) {
			t.Errorf("%s: %q, %v", h.Name, out, err)
		}
	}
	if outer.Connections() != 1 || inner.Connections() != 1 || one.Connections() != 1 || two.Connections() != 1 {
		t.Errorf("%d, %d, %d and %d connections, want one each", outer.Connections(), inner.Connections(),
			one.Connections(), two.Connections())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
