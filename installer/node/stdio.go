package node

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// The streams of `kkbundle-node dial` carry frames. An empty frame ends its direction; the other direction continues.
// The first frame from the host is a JSON dialAnswer.

// A dialAnswer is the result of dialling.
type dialAnswer struct {
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
	Error  string `json:"error,omitempty"`
}

// dialTimeout is the time limit for a connection from the host.
const dialTimeout = 10 * time.Second

// DialStdio makes a connection and carries it over in and out, to a Dialer on the other side. It returns when both
// directions have ended, when in ends unexpectedly (the other side is closed or gone), or when ctx is done. A failed
// connection is reported to the other side and returned.
func DialStdio(ctx context.Context, network, addr string, in io.Reader, out io.Writer) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return errors.Join(err, wire.WriteMessage(out, dialAnswer{Error: err.Error()}))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }() // both directions have ended, or nobody is left to tell
	if err := wire.WriteMessage(out, dialAnswer{
		Local:  conn.LocalAddr().String(),
		Remote: conn.RemoteAddr().String(),
	}); err != nil {
		return err
	}
	// Reading in cannot be interrupted, so return at the first of two events: both directions end, or in breaks off.
	ended := make(chan error, 2)
	go func() { ended <- unframe(in, conn, func() error { return closeWrite(conn) }) }()
	go func() { ended <- frame(conn, out) }()
	for range 2 {
		if err := <-ended; errors.Is(err, wire.ErrGone) {
			return nil // the other side has closed the whole connection
		} else if err != nil {
			return err
		}
	}
	return nil
}

func closeWrite(conn net.Conn) error {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return conn.Close()
}

// frame copies r to w in frames, followed by an end frame.
func frame(r io.Reader, w io.Writer) error {
	buf := make([]byte, 4+wire.Chunk)
	for {
		n, err := r.Read(buf[4:])
		if n > 0 {
			binary.BigEndian.PutUint32(buf, uint32(n))
			if _, err := w.Write(buf[:4+n]); err != nil {
				return err
			}
		}
		if err != nil {
			// A reset connection ends for the other side as well.
			return wire.WriteFrame(w, nil)
		}
	}
}

// unframe copies the content of r's frames to w, and then calls end.
func unframe(r io.Reader, w io.Writer, end func() error) error {
	buffered := bufio.NewReaderSize(r, wire.Chunk)
	for {
		n, err := wire.ReadLength(buffered, wire.MaxFrame)
		if err != nil {
			return err
		}
		if n == 0 {
			return end()
		}
		if copied, err := io.CopyN(w, buffered, int64(n)); err != nil {
			if errors.Is(err, io.EOF) && copied < int64(n) {
				return wire.ErrGone
			}
			return err
		}
	}
}

// A Starter starts kkbundle-node on a host with these arguments and returns its standard input and output. Close ends
// it and returns its exit error.
type Starter func(ctx context.Context, args ...string) io.ReadWriteCloser

// Dialer returns a function like net.Dialer's DialContext whose connections are made on the host, by the helper that
// start starts. Deadlines and CloseWrite work.
func Dialer(start Starter) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" && network != "tcp4" && network != "tcp6" {
			return nil, fmt.Errorf("dial %s %s: only tcp goes through a host", network, addr)
		}
		// As with net.Dialer, ctx covers only the setup of the connection, not its life.
		s := start(context.WithoutCancel(ctx), "dial", addr)
		type result struct {
			answer dialAnswer
			err    error
		}
		first := make(chan result, 1)
		go func() {
			var r result
			r.err = wire.ReadMessage(s, &r.answer, wire.MaxAnswer)
			first <- r
		}()
		select {
		case <-ctx.Done():
			go func() { _ = s.Close() }() // takes as long as the host needs
			return nil, fmt.Errorf("dial %s: %w", addr, context.Cause(ctx))
		case r := <-first:
			if r.err == nil && r.answer.Error != "" {
				_ = s.Close() // fails for the same reason
				return nil, fmt.Errorf("dial %s through the host: %s", addr, r.answer.Error)
			}
			if r.err != nil {
				return nil, fmt.Errorf("dial %s through the host: %w", addr, errors.Join(r.err, s.Close()))
			}
			return newConn(s, r.answer), nil
		}
	}
}

// conn is a remote connection. Each direction is a pipe with deadlines, and a goroutine connects it with the stream,
// which has none.
type conn struct {
	stream        io.ReadWriteCloser
	read, write   net.Conn
	local, remote addr
	once          sync.Once
	closed        error
}

func newConn(s io.ReadWriteCloser, a dialAnswer) *conn {
	read, fromHost := net.Pipe()
	write, toHost := net.Pipe()
	c := &conn{stream: s, read: read, write: write, local: addr(a.Local), remote: addr(a.Remote)}
	go func() {
		_ = unframe(s, fromHost, func() error { return nil }) // Close returns the reason
		_ = fromHost.Close()
	}()
	go func() {
		_ = frame(toHost, s)
		_ = toHost.Close()
	}()
	return c
}

func (c *conn) Read(p []byte) (int, error)  { return c.read.Read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.write.Write(p) }

// CloseWrite ends sending; receiving continues.
func (c *conn) CloseWrite() error { return c.write.Close() }

// Close ends the connection on the host, too.
func (c *conn) Close() error {
	c.once.Do(func() {
		_ = c.read.Close()
		_ = c.write.Close()
		c.closed = c.stream.Close()
	})
	return c.closed
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.read.SetReadDeadline(t), c.write.SetWriteDeadline(t))
}
func (c *conn) SetReadDeadline(t time.Time) error  { return c.read.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.write.SetWriteDeadline(t) }

// addr is an address in the host's notation.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }
