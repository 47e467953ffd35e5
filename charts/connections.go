package charts

import (
	"context"
	"net"
	"sync"

	"k8s.io/client-go/rest"
)

// connections are those that one call makes to the API server. Clients keep theirs for another minute and a half after the last
// request, and where each is a session on somebody's SSH connection, of which there are few, the next call would wait for that.
type connections struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	open  map[*connection]struct{}
	ended bool
}

// A connection is forgotten when it is closed.
type connection struct {
	net.Conn
	of *connections
}

// ofOneCall returns options whose connections end with the call.
func ofOneCall(o InstallOptions) (_ InstallOptions, end func()) {
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
	if c.ended { // what a cancelled call has left running
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

// shared returns a configuration whose clients use one transport, and with that one connection: with a Dial of its own, each
// client would get a transport of its own.
func shared(config *rest.Config) (*rest.Config, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	one := rest.AnonymousClientConfig(config) // what says who we are is in the transport
	one.TLSClientConfig, one.Dial, one.Transport = rest.TLSClientConfig{}, nil, transport
	return one, nil
}
