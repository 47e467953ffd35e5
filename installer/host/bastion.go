package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/plain"
)

// maxTunnels is how many connections lead through one bastion at a time. sshd has room for 10240 channels.
const maxTunnels = 2048

// Bastions are SSH connections to hosts that others are reached through. Each is made once, when it is needed first, and
// shared by all hosts behind it. One that cannot be reached, or is lost, is not tried again: what is behind it could
// not be trusted to be as it was. All methods are safe for concurrent use.
type Bastions struct {
	ctx    context.Context //nolint:containedctx // what Close ends: a bastion belongs to all who wait for it
	cancel context.CancelFunc

	mu   sync.Mutex
	hops map[string]*hop
}

// NewBastions returns no bastions yet. Close ends those that there will be.
func NewBastions() *Bastions {
	ctx, cancel := context.WithCancel(context.Background())
	return &Bastions{ctx: ctx, cancel: cancel, hops: map[string]*hop{}}
}

// Through returns an SSHOptions.Net that makes connections from the last of the hops, which is itself reached through
// the one before it, and so on; none is the network. Host names are looked up where the connection is made. The error
// is a *BastionError. A hop is known by its user, address and port, and by the hops before it; its Net is not used.
func (b *Bastions) Through(hops ...SSHOptions) func(ctx context.Context, network, address string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var way string
	var through func(context.Context, string, string) (net.Conn, error)
	for _, o := range hops {
		o.Net = through
		o = o.withDefaults()
		way += o.User + "@" + o.address() + " "
		h := b.hops[way]
		if h == nil {
			h = &hop{options: o, all: b, tunnels: make(chan struct{}, maxTunnels)}
			b.hops[way] = h
		}
		through = h.connect
	}
	return through
}

// Close ends all connections to bastions, and those through them.
func (b *Bastions) Close() error {
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*hop
	for _, h := range b.hops {
		all = append(all, h)
	}
	for _, h := range all {
		h.close()
	}
	return nil
}

// A BastionError is a bastion that could not be reached or was lost, or that could not reach the host behind it.
type BastionError struct {
	// Bastion is its name, Address where it was expected.
	Bastion, Address string
	Err              error
}

// Error names the bastion and the reason.
func (e *BastionError) Error() string {
	return fmt.Sprintf("through the bastion %s (%s): %v", e.Bastion, e.Address, e.Err)
}

// Unwrap returns the reason.
func (e *BastionError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *BastionError) Hint() string {
	var hinted interface{ Hint() string }
	if errors.As(e.Err, &hinted) {
		return hinted.Hint()
	}
	return "check that the bastion is up, and that its address and port in the inventory are right"
}

// A ForwardingError is a bastion that does not let connections through, or not this one.
type ForwardingError struct {
	// User is who we are on the bastion, Address where the connection should have gone.
	User, Address string
}

// Error says what is not allowed.
func (e *ForwardingError) Error() string {
	return "it does not let " + e.User + " connect to " + e.Address + " (AllowTcpForwarding no, DisableForwarding, PermitOpen or a restricted key)"
}

// Hint says what to do about it.
func (e *ForwardingError) Hint() string {
	return "allow it in the bastion's sshd_config (AllowTcpForwarding local for " + e.User + ", and " + e.Address + " in PermitOpen if that is set), go by another bastion, or run kkbundle on the bastion"
}

// A behindError is a host that the bastion cannot reach.
type behindError struct{ reason string }

func (e *behindError) Error() string { return e.reason }

func (e *behindError) Hint() string {
	return "check on the bastion that the host is up and can be reached from there: its name is looked up there, and firewalls are between those two"
}

// A hop is one bastion.
type hop struct {
	options SSHOptions
	all     *Bastions
	once    sync.Once
	ready   chan struct{} // closed when the connection was made, or was not
	conn    *connection   // nil if it could not be made
	err     error
	tunnels chan struct{} // taken places
}

// connect makes a connection from the bastion.
func (h *hop) connect(ctx context.Context, network, address string) (net.Conn, error) {
	if err := h.wait(ctx); err != nil {
		return nil, err
	}
	select {
	case h.tunnels <- struct{}{}:
	default:
		return nil, h.failed(fmt.Errorf("more than %d connections at a time", maxTunnels))
	}
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := h.conn.client.DialContext(limited, network, address)
	if err != nil {
		<-h.tunnels
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, h.failed(h.explain(err, address))
	}
	return &tunnel{Conn: conn, hop: h}, nil
}

// wait waits for the connection to the bastion; the first to need it has it made.
func (h *hop) wait(ctx context.Context) error {
	h.once.Do(func() {
		h.ready = make(chan struct{})
		go h.make(ctx)
	})
	select {
	case <-h.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if h.err != nil {
		return h.err
	}
	if h.conn.isLost() {
		return h.failed(h.conn.why())
	}
	return nil
}

// make connects to the bastion. It goes on when the host that asked first is given up: others may be waiting.
func (h *hop) make(ctx context.Context) {
	defer close(h.ready)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(h.all.ctx, cancel)() //nolint:contextcheck // Close ends it, and not the host that asked first
	client, err := h.options.dial(ctx)
	if err != nil {
		h.err = h.failed(err)
		return
	}
	h.conn = newConnection(client, h.options.Keepalive)
}

// failed makes an error that names the bastion. What is wrong with one before it is that one's.
func (h *hop) failed(err error) error {
	if before := new(BastionError); errors.As(err, &before) {
		return before
	}
	return &BastionError{Bastion: h.options.Name, Address: h.options.address(), Err: err}
}

// explain makes the reason out of a connection that the bastion did not make.
func (h *hop) explain(err error, address string) error {
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused) && (refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType):
		return &ForwardingError{User: h.options.User, Address: address}
	case errors.As(err, &refused):
		return &behindError{strings.ToLower(oneLine(plain.Strip(refused.Message)))}
	case errors.Is(err, context.DeadlineExceeded):
		return &behindError{fmt.Sprintf("no answer within %s", dialTimeout)}
	case h.conn.isLost():
		return h.conn.why()
	}
	return err
}

func (h *hop) close() {
	h.once.Do(func() { // nobody needed it
		h.ready = make(chan struct{})
		h.err = h.failed(net.ErrClosed)
		close(h.ready)
	})
	<-h.ready
	if h.conn != nil {
		_ = h.conn.client.Close()
	}
}

// A tunnel is a connection through a bastion.
type tunnel struct {
	net.Conn
	hop    *hop
	closed atomic.Bool
}

// Read reads from the connection. If it has ended because the bastion was lost, the error says so.
func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if err == nil || t.closed.Load() {
		return n, err
	}
	if t.hop.conn.gone() {
		err = t.hop.failed(t.hop.conn.why())
	}
	return n, err
}

// Close ends the connection.
func (t *tunnel) Close() error {
	if t.closed.Swap(true) {
		return net.ErrClosed
	}
	err := t.Conn.Close()
	<-t.hop.tunnels
	return err
}
