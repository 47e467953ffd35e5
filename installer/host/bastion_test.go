package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
)

// forward makes connections as sshd does.
func forward(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

func optionsOf(name string, s *hosttest.Server) host.SSHOptions {
	return host.SSHOptions{
		Name: name, Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts}, Patience: patience,
	}
}

func bastions(t *testing.T) *host.Bastions {
	t.Helper()
	b := host.NewBastions()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// TestBastions reaches many hosts by way of two bastions, which log us in in different ways.
func TestBastions(t *testing.T) {
	t.Parallel()
	needRoot(t)
	outer := hosttest.Start(t, hosttest.Options{Forward: forward, Password: "outer"})
	inner := hosttest.Start(t, hosttest.Options{Forward: forward})
	target := hosttest.Start(t, hosttest.Options{})
	first := optionsOf("outer", outer)
	first.Keys, first.Password = nil, secret("outer")
	b := bastions(t)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			o := optionsOf("node"+strconv.Itoa(i), target)
			o.Net = b.Through(first, optionsOf("inner", inner))
			h, err := host.Dial(t.Context(), o)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = h.Close() }()
			if out, err := host.Output(t.Context(), h, "echo", "there"); err != nil || string(out) != "there\n" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	all.Wait()
	if outer.Connections() != 1 || inner.Connections() != 1 {
		t.Errorf("%d and %d connections to the bastions, want one each", outer.Connections(), inner.Connections())
	}
	if target.Connections() != 12 {
		t.Errorf("%d connections to the host, want 12", target.Connections())
	}
	t.Run("suite", func(t *testing.T) {
		o := optionsOf("node", target)
		o.Net = b.Through(first, optionsOf("inner", inner))
		suite(t, dial(t, o))
	})
}

// TestBastionFaults has a bastion fail in every way; each host behind it says which it is, and what to do.
func TestBastionFaults(t *testing.T) {
	t.Parallel()
	needRoot(t)
	target := hosttest.Start(t, hosttest.Options{})
	never := func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, c := range []struct {
		name    string
		options hosttest.Options
		change  func(*host.SSHOptions, *hosttest.Server)
		want    string // in the message
		hint    string
	}{
		{
			"refused",
			hosttest.Options{},
			func(o *host.SSHOptions, _ *hosttest.Server) { o.Port = 1 },
			"connection refused", "the bastion is up",
		},
		{"wrong key", hosttest.Options{}, func(o *host.SSHOptions,
			_ *hosttest.Server,
		) {
			o.Keys = []string{target.KeyFile}
		}, "log in as root: refused", "ssh.key"},
		{
			"unknown host key",
			hosttest.Options{},
			func(o *host.SSHOptions, _ *hosttest.Server) { o.KnownHosts = nil },
			"the host key is not known", "--accept-new",
		},
		{"forbidden", hosttest.Options{}, nil, "does not let root connect to " + target.Addr, "AllowTcpForwarding"},
		{"nobody there", hosttest.Options{Forward: func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("Connection refused\x1b[2J")
		}}, nil, "connection refused", "check on the bastion"},
		{"no answer", hosttest.Options{Forward: never}, nil, "no answer within 5s", "check on the bastion"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.Start(t, c.options)
			jump := optionsOf("jump", s)
			if c.change != nil {
				c.change(&jump, s)
			}
			b := bastions(t)
			for _, name := range []string{"node1", "node2"} {
				o := optionsOf(name, target)
				o.Net = b.Through(jump)
				_, err := host.Dial(t.Context(), o)
				var bastion *host.BastionError
				var unreachable *host.UnreachableError
				if !errors.As(err, &unreachable) || unreachable.Host != name || !errors.As(err, &bastion) ||
					bastion.Bastion != "jump" || bastion.Address != fmt.Sprintf("%s:%d", jump.Address, jump.Port) {
					t.Fatalf("got %v, want an UnreachableError about %s with a BastionError", err, name)
				}
				if !strings.Contains(err.Error(), c.want) || !strings.Contains(unreachable.Hint(), c.hint) ||
					strings.Contains(err.Error(), "\x1b") {
					t.Errorf("%v -> %s, want %q and %q", err, unreachable.Hint(), c.want, c.hint)
				}
			}
			if s.Connections() > 1 {
				t.Errorf("%d connections to the bastion: one is enough to know", s.Connections())
			}
		})
	}
}

// TestBastionLost cuts a bastion off while a command runs behind it.
func TestBastionLost(t *testing.T) {
	t.Parallel()
	needRoot(t)
	outer := hosttest.Start(t, hosttest.Options{Forward: forward})
	inner := hosttest.Start(t, hosttest.Options{Forward: forward})
	target := hosttest.Start(t, hosttest.Options{})
	b := bastions(t)
	o := optionsOf("node1", target)
	o.Net = b.Through(optionsOf("outer", outer), optionsOf("inner", inner))
	h, err := host.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	s := host.Open(t.Context(), h, "cat")
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	outer.Drop()
	_, err = s.Read(make([]byte, 1))
	var bastion *host.BastionError
	if !errors.As(err, &bastion) || bastion.Bastion != "outer" {
		t.Errorf("got %v, want an error about outer", err)
	}
	if _, err := host.Dial(t.Context(), o); !errors.As(err, &bastion) || bastion.Bastion != "outer" {
		t.Errorf("the next host: %v, want an error about outer", err)
	}
}

// TestBastionGivenUp gives up one host, and closes bastions, while a bastion is silent.
func TestBastionGivenUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := host.NewBastions()
	o := host.SSHOptions{Name: "node1", Address: "192.0.2.1"}
	o.Net = b.Through(host.SSHOptions{Name: "jump", Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port})
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("given up")
	ended := make(chan error, 2)
	go func() {
		_, err := host.Dial(ctx, o)
		ended <- err
	}()
	silent, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	cancel(given)
	if err := <-ended; !errors.Is(err, given) {
		t.Errorf("got %v, want the cause", err)
	}
	go func() {
		_, err := host.Dial(t.Context(), o)
		ended <- err
	}()
	_ = b.Close()
	var bastion *host.BastionError
	if err := <-ended; !errors.As(err, &bastion) {
		t.Errorf("after Close: %v", err)
	}
}

// TestSSHDForwarding has OpenSSH say what it lets through.
func TestSSHDForwarding(t *testing.T) {
	t.Parallel()
	target := hosttest.StartSSHD(t, hosttest.SSHDOptions{})
	for _, c := range []struct {
		name, config, want string
	}{
		{"allowed", "AllowTcpForwarding local", ""},
		{"forbidden", "AllowTcpForwarding no", "does not let root connect to"},
		{"disabled", "DisableForwarding yes", "does not let root connect to"},
		{"elsewhere", "AllowTcpForwarding yes\nPermitOpen 192.0.2.1:22", "does not let root connect to"},
		{"nobody there", "AllowTcpForwarding yes", "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Config: c.config})
			jump := host.SSHOptions{
				Name: "jump", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
				KnownHosts: []string{s.KnownHosts}, Patience: patience,
			}
			o := host.SSHOptions{
				Name: "node1", Address: target.Host, Port: target.Port, Keys: []string{target.KeyFile},
				KnownHosts: []string{target.KnownHosts}, Patience: patience,
			}
			if c.name == "nobody there" {
				o.Address, o.Port = "127.0.0.2", 1
			}
			o.Net = bastions(t).Through(jump)
			h, err := host.Dial(t.Context(), o)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				testStreams(t, h)
				testMany(t, h)
				_ = h.Close()
				return
			}
			var bastion *host.BastionError
			if !errors.As(err, &bastion) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
