package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// SSHOptions say how to reach a host. Ways to log in are tried in this order: Key, agent, Password.
type SSHOptions struct {
	// Name is the host's name in messages; "" is Address.
	Name string
	// Address is a host name or an IP address, Port 22 if 0, User root if "".
	Address string
	Port    int
	User    string
	// Keys are paths of private keys. One that is not there is an error.
	Keys []string
	// KeyData are private keys as such, in PEM. They are used before Keys.
	KeyData []Secret
	// Passphrase is asked for when a key has one and the agent does not hold the key; nil refuses such keys.
	Passphrase func(ctx context.Context, key string) (string, error)
	// AgentSocket is the path of an SSH agent's socket; "" uses none.
	AgentSocket string
	// Password logs in, nil if there is none; SudoPassword is for sudo, nil if sudo asks for none.
	Password, SudoPassword Secret
	// KnownHosts are the files that host keys are checked against; those that are not there have no keys in them.
	KnownHosts []string
	// AcceptNew adds the key of a host that is in none of the files to the first of them. A key that differs from the
	// known one is refused all the same.
	AcceptNew bool
	// Net makes the connection, and gives up in time by itself; nil is the network. A way through other hosts goes in
	// here, see Bastions.
	Net func(ctx context.Context, network, address string) (net.Conn, error)
	// Keepalive is how often a silent host is asked for a sign of life, 15 seconds if 0. After three without one it is
	// lost.
	Keepalive time.Duration
	// Patience is how long each of the first commands may take before the host is given up, 20 seconds if 0. How long a
	// person takes to type a password does not count. As long may a command that was killed take to end; a host that has one which
	// does not, as where a disk does not answer, is lost. What kills it has a quarter of that time, and 5 seconds at least.
	Patience time.Duration
}

// Limits on connections.
const (
	defaultPort      = 22
	defaultUser      = "root"
	defaultKeepalive = 15 * time.Second
	// missedKeepalives is after how many intervals without an answer a host is lost.
	missedKeepalives = 3
)

// withDefaults fills in what was left out.
func (o SSHOptions) withDefaults() SSHOptions {
	if o.Name == "" {
		o.Name = o.Address
	}
	if o.Port == 0 {
		o.Port = defaultPort
	}
	if o.User == "" {
		o.User = defaultUser
	}
	if o.Net == nil {
		o.Net = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if o.Keepalive == 0 {
		o.Keepalive = defaultKeepalive
	}
	if o.Patience == 0 {
		o.Patience = firstTimeout
	}
	// Further connections to the host must not ask again.
	o.Password, o.SudoPassword = remember(o.Password), remember(o.SudoPassword)
	if ask := o.Passphrase; ask != nil {
		known := map[string]Secret{}
		for _, key := range o.Keys {
			known[key] = remember(func(ctx context.Context) (string, error) { return ask(ctx, key) })
		}
		o.Passphrase = func(ctx context.Context, key string) (string, error) { return known[key](ctx) }
	}
	return o
}

func (o SSHOptions) address() string { return net.JoinHostPort(o.Address, strconv.Itoa(o.Port)) }

// Dial connects to a host and finds out how commands become root there. The error is an *UnreachableError, which may
// wrap one of the other errors here, or a *SudoError. Cancelling ctx later does not end the connection; Close does.
func Dial(ctx context.Context, o SSHOptions) (Host, error) {
	o = o.withDefaults()
	p := &pool{options: o}
	first, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	p.connections = []*connection{first}
	m := &machine{name: o.Name, start: p, root: elevation{user: o.User}, patience: o.Patience}
	if err := m.elevate(ctx, o.SudoPassword); err != nil {
		_ = p.close()
		var shell *LoginError
		var slow *SlowError
		switch {
		case errors.As(err, &shell):
			return nil, p.unreachable(shell)
		case errors.As(err, &slow):
			return nil, p.unreachable(err)
		}
		return nil, err
	}
	return m, nil
}

// connect makes one more connection.
func (p *pool) connect(ctx context.Context) (*connection, error) {
	client, err := p.options.dial(ctx)
	if err == nil {
		return newConnection(client, p.options.Keepalive), nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: connect to %s: %w", p.options.Name, p.options.address(), context.Cause(ctx))
	}
	return nil, &UnreachableError{Host: p.options.Name, Address: p.options.address(), Err: err}
}
