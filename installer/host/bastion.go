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

	"github.com/kkbundle/kkbundle/internal/plain"
)

// maxTunnels bounds the concurrent connections through one bastion. sshd allows 10240 channels.
const maxTunnels = 2048

// Bastions are SSH connections to hosts that lead to others. Each is made once, on first use, and shared by all hosts
// behind it. An unreachable or lost bastion is not tried again: the state of the hosts behind it could have changed.
// All methods are safe for concurrent use.
type Bastions struct {
	ctx    context.Context //nolint:containedctx // what Close ends: a bastion belongs to all who wait for it
	cancel context.CancelFunc

	mu   sync.Mutex
	hops map[string]*hop
}

// NewBastions returns an empty set. Close ends its future connections.
func NewBastions() *Bastions {
	ctx, cancel := context.WithCancel(context.Background())
	return &Bastions{ctx: ctx, cancel: cancel, hops: map[string]*hop{}}
}

// Through returns an SSHOptions.Net that makes connections from the last of the hops, which is itself reached through
// the one before it, and so on; without hops it is the network. Host names are resolved where the connection is made.
// The error is a *BastionError. A hop is identified by its user, address and port, and by the hops before it; its Net
// is ignored.
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

// Close ends all connections to and through bastions.
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

// A BastionError means a bastion was unreachable or lost, or could not reach the host behind it.
type BastionError struct {
	// Bastion is its name, Address its expected address.
	Bastion, Address string
	Err              error
}

// Error names the bastion and the reason.
func (e *BastionError) Error() string {
	return fmt.Sprintf("through the bastion %s (%s): %v", e.Bastion, e.Address, e.Err)
}

// Unwrap returns the reason.
func (e *BastionError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *BastionError) Hint() string {
	var hinted interface{ Hint() string }
	if errors.As(e.Err, &hinted) {
		return hinted.Hint()
	}
	return "check that the bastion is up, and that its address and port in the inventory are right"
}

// A hop is one bastion.
type hop struct {
	options SSHOptions
	all     *Bastions
	once    sync.Once
	ready   chan struct{} // closed when dialling has succeeded or failed
	conn    *connection   // nil if dialling failed
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

// wait waits for the connection to the bastion; the first caller starts dialling.
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

// make connects to the bastion. It continues if the host that asked first is given up: others may be waiting.
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

// failed returns an error that names the bastion. An error of an earlier bastion keeps that one's name.
func (h *hop) failed(err error) error {
	if before := new(BastionError); errors.As(err, &before) {
		return before
	}
	return &BastionError{Bastion: h.options.Name, Address: h.options.address(), Err: err}
}

// behind returns the error of a host that the bastion cannot reach.
func behind(reason string) error {
	return plain.Advise(errors.New(reason),
		"check on the bastion that the host is up and can be reached from there: its name is looked up there, and firewalls are between those two")
}

// explain returns the reason that the bastion did not make a connection.
func (h *hop) explain(err error, address string) error {
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused) && (refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType):
		return plain.Advise(
			errors.New("it does not let "+h.options.User+" connect to "+address+
				" (AllowTcpForwarding no, DisableForwarding, PermitOpen or a restricted key)"),
			"allow it in the bastion's sshd_config (AllowTcpForwarding local for "+h.options.User+", and "+address+
				" in PermitOpen if that is set), go by another bastion, or run kkbundle on the bastion")
	case errors.As(err, &refused):
		return behind(strings.ToLower(oneLine(plain.Strip(refused.Message))))
	case errors.Is(err, context.DeadlineExceeded):
		return behind(fmt.Sprintf("no answer within %s", dialTimeout))
	case h.conn.isLost():
		return h.conn.why()
	}
	return err
}

func (h *hop) close() {
	h.once.Do(func() { // never used
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

// Read reads from the connection. If the bastion was lost, the error says so.
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
