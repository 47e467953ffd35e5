package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
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
	// Net makes the connection; nil is the network. A way through another host goes in here.
	Net func(ctx context.Context, network, address string) (net.Conn, error)
	// Keepalive is how often a silent host is asked for a sign of life, 15 seconds if 0. After three without one it is
	// lost.
	Keepalive time.Duration
}

// Limits on connections.
const (
	defaultPort      = 22
	defaultUser      = "root"
	defaultKeepalive = 15 * time.Second
	// missedKeepalives is after how many intervals without an answer a host is lost.
	missedKeepalives = 3
	dialTimeout      = 5 * time.Second
	// handshakeTimeout leaves time for sshd to look up the client's name, which it gives up after about 10 seconds.
	handshakeTimeout = 20 * time.Second
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
		o.Net = (&net.Dialer{}).DialContext
	}
	if o.Keepalive == 0 {
		o.Keepalive = defaultKeepalive
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
// wrap an *AuthError or a *KeyError, or a *SudoError. Cancelling ctx later does not end the connection; Close does.
func Dial(ctx context.Context, o SSHOptions) (Host, error) {
	o = o.withDefaults()
	p := &pool{options: o}
	first, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	p.connections = []*connection{first}
	m := &machine{name: o.Name, start: p, root: elevation{user: o.User}}
	if err := m.elevate(ctx, o.SudoPassword); err != nil {
		_ = p.close()
		return nil, err
	}
	return m, nil
}

// connect makes one more connection.
func (p *pool) connect(ctx context.Context) (*connection, error) {
	client, err := p.dial(ctx)
	if err == nil {
		return newConnection(client, p.options.Keepalive), nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: connect to %s: %w", p.options.Name, p.options.address(), context.Cause(ctx))
	}
	return nil, &UnreachableError{Host: p.options.Name, Address: p.options.address(), Err: err}
}

func (p *pool) dial(ctx context.Context) (*ssh.Client, error) {
	o := p.options
	keys, err := readKnownHosts(o.KnownHosts)
	if err != nil {
		return nil, err
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := o.Net(dialCtx, "tcp", o.address())
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer within %s", dialTimeout)
	}
	if err != nil {
		return nil, plainNetError(err)
	}
	// Close is what ends a handshake early; after it, the client owns the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	a := &authentication{ctx: ctx, options: o, conn: conn}
	defer a.close()
	a.rearm()
	verify := &verifier{options: o, keys: keys}
	c, channels, requests, err := ssh.NewClientConn(conn, o.address(), &ssh.ClientConfig{
		User:              o.User,
		Auth:              a.methods(),
		HostKeyCallback:   verify.check,
		HostKeyAlgorithms: keys.algorithms(o.address()),
	})
	if err != nil {
		_ = conn.Close()
		return nil, a.explain(err, verify.refused)
	}
	return ssh.NewClient(c, channels, requests), conn.SetDeadline(time.Time{})
}

// plainNetError takes away what the address in the message repeats: "dial tcp 10.0.0.1:22: connect: refused".
func plainNetError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
