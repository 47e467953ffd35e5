package capped

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Listener bounds the open connections of another listener. When all places are taken, a new connection gets the
// place of an open one: of the address with most connections, the one that has been quiet longest. So neither an
// address nor a slow client keeps others out, and a lone address, such as that of a proxy or a NAT, may take all
// places.
type Listener struct {
	net.Listener
	most  int
	begun time.Time

	mu    sync.Mutex
	open  map[*Conn]bool
	count map[netip.Prefix]int // of open connections
}

// NewListener returns a listener with at most that many open connections.
func NewListener(l net.Listener, most int) *Listener {
	return &Listener{Listener: l, most: most, begun: time.Now(), open: map[*Conn]bool{}, count: map[netip.Prefix]int{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// AcceptConn returns the next connection.
func (l *Listener) AcceptConn() (*Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: inner, of: l, origin: origin(inner.RemoteAddr())}
	c.touch()
	if left := l.admit(c); left != nil {
		_ = left.Close() // its owner sees the error
	}
	return c, nil
}

// admit adds a connection, and returns the one that has to leave for it, or nil.
func (l *Listener) admit(c *Conn) (leaves *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		leaves = l.quietest()
		l.forget(leaves)
	}
	l.open[c] = true
	l.count[c.origin]++
	return leaves
}

// quietest returns the connection that has been quiet longest, of an address with most connections.
func (l *Listener) quietest() (found *Conn) {
	for c := range l.open {
		if found == nil || l.count[c.origin] > l.count[found.origin] ||
			l.count[c.origin] == l.count[found.origin] && c.active.Load() < found.active.Load() {
			found = c
		}
	}
	return found
}

func (l *Listener) forget(c *Conn) {
	if !l.open[c] {
		return
	}
	delete(l.open, c)
	if l.count[c.origin]--; l.count[c.origin] == 0 {
		delete(l.count, c.origin)
	}
}

// origin returns the address that connections are counted for. An IPv6 host has a network of 64 bits.
func origin(a net.Addr) netip.Prefix {
	const network = 64
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	p, _ := ip.Prefix(min(ip.BitLen(), network)) // the bits of 32 or 128 that are counted
	return p
}

// A Conn is a connection that a Listener accepted.
type Conn struct {
	net.Conn
	of     *Listener
	origin netip.Prefix
	active atomic.Int64 // when bytes last moved, since the listener's begin

	closed bool // like ended, it is of.mu's
	ended  func()
}

func (c *Conn) touch() { c.active.Store(int64(time.Since(c.of.begun))) }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.touch()
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.touch()
	}
	return n, err
}

// CloseWrite ends the sending direction, where the connection can.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// OnClose calls f when the connection is closed: by its owner, or by the listener for another connection.
func (c *Conn) OnClose(f func()) {
	c.of.mu.Lock()
	closed := c.closed
	c.ended = f
	c.of.mu.Unlock()
	if closed {
		f()
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	ended := c.ended
	if c.closed {
		ended = nil
	}
	c.closed = true
	c.of.mu.Unlock()
	if ended != nil {
		ended()
	}
	return c.Conn.Close()
}
