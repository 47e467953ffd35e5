package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/internal/pace"
)

// SSHOptions configure access to a host. Credentials are tried in this order: Key, agent, Password.
type SSHOptions struct {
	// Name is the host's name in messages; "" is Address.
	Name string
	// Address is a host name or an IP address, Port 22 if 0, User root if "".
	Address string
	Port    int
	User    string
	// Keys are paths of private keys. A missing file is an error.
	Keys []string
	// KeyData are private keys as PEM content. They are tried before Keys.
	KeyData []Secret
	// Passphrase is called when a key has one and the agent does not hold the key; nil refuses such keys.
	Passphrase func(ctx context.Context, key string) (string, error)
	// AgentSocket is the path of an SSH agent's socket; "" uses none.
	AgentSocket string
	// Password is for the login, nil if there is none; SudoPassword is for sudo, nil if sudo requires none.
	Password, SudoPassword Secret
	// KnownHosts are the files to check host keys against; a missing file counts as empty.
	KnownHosts []string
	// AcceptNew adds the key of an unknown host to the first of the files. A key that differs from the known one is
	// still refused.
	AcceptNew bool
	// Net makes the connection, with its own time limit; nil is the network. Use it for a path through other hosts, see
	// Bastions.
	Net func(ctx context.Context, network, address string) (net.Conn, error)
	// Keepalive is the interval of keepalives to a silent host, 15 seconds if 0. After three without an answer the host
	// is lost.
	Keepalive time.Duration
	// Patience is the time limit for each of the first commands, 20 seconds if 0. The time that a person takes to type
	// a password does not count. It also limits the end of a killed command: a host with a command that does not end,
	// for example because a disk does not answer, is lost. The killing command has a quarter of that time, but at least
	// 5 seconds.
	Patience time.Duration
	// Pace limits the bytes of commands' input; hosts can share it. nil limits nothing.
	Pace *pace.Limit
}

// Limits on connections.
const (
	defaultPort      = 22
	defaultUser      = "root"
	defaultKeepalive = 15 * time.Second
	// missedKeepalives is the number of unanswered keepalives after which a host is lost.
	missedKeepalives = 3
)

// withDefaults fills in defaults.
func (o SSHOptions) withDefaults() SSHOptions {
	o.Name = cmp.Or(o.Name, o.Address)
	o.Port = cmp.Or(o.Port, defaultPort)
	o.User = cmp.Or(o.User, defaultUser)
	if o.Net == nil {
		o.Net = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	o.Keepalive = cmp.Or(o.Keepalive, defaultKeepalive)
	o.Patience = cmp.Or(o.Patience, firstTimeout)
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
	m := &machine{name: o.Name, start: p, root: elevation{user: o.User}, patience: o.Patience, pace: o.Pace}
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
