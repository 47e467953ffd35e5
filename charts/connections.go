package charts

import (
	"context"
	"net"
	"sync"

	"k8s.io/client-go/rest"
)

// connections are the API server connections of one call. Clients keep idle connections for another minute and a half.
// Where each is a session on a shared SSH connection, which allows few sessions, the next call would have to wait for
// that.
type connections struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	open  map[*connection]struct{}
	ended bool
}

// A connection removes itself from the list when it is closed.
type connection struct {
	net.Conn
	of *connections
}

// ofOneCall returns options whose connections end with the call.
func ofOneCall(o InstallOptions) (_ InstallOptions, end func()) {
	if o.Cluster != nil { // it outlives the call
		return o, func() {}
	}
	c := &connections{dial: o.Dial, open: map[*connection]struct{}{}}
	if c.dial == nil {
		c.dial = new(net.Dialer).DialContext
	}
	o.Dial = c.connect
	return o, c.end
}

func (c *connections) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended { // still running after the call was cancelled
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	one := &connection{conn, c}
	c.open[one] = struct{}{}
	return one, nil
}

func (c *connections) end() {
	c.mu.Lock()
	c.ended = true
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for one := range open {
		_ = one.Conn.Close()
	}
}

// Close closes the connection.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// shared returns a configuration whose clients share one transport, and thus one connection. With a Dial of its own,
// each client would get its own transport.
func shared(config *rest.Config) (*rest.Config, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	one := rest.AnonymousClientConfig(config) // the credentials are in the transport
	one.TLSClientConfig, one.Dial, one.Transport = rest.TLSClientConfig{}, nil, transport
	return one, nil
}
