package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// tunnel is a Starter whose helper runs in this process.
type tunnel struct {
	io.Reader
	io.WriteCloser
	done chan error
}

func (t *tunnel) Close() error {
	_ = t.WriteCloser.Close()
	return <-t.done
}

func startTunnel(ctx context.Context, args ...string) io.ReadWriteCloser {
	in, toHost := io.Pipe()
	fromHost, out := io.Pipe()
	t := &tunnel{Reader: fromHost, WriteCloser: toHost, done: make(chan error, 1)}
	go func() {
		err := DialStdio(ctx, "tcp", args[1], in, out)
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.Close()
		t.done <- err
	}()
	return t
}

func TestDialerHTTP(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5<<20)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/close" {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, large)
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	}))
	defer s.Close()
	transport := &http.Transport{DialContext: Dialer(startTunnel)}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 3 {
		r, err := client.Post(s.URL+"/count", "text/plain", strings.NewReader(large))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || string(body) != fmt.Sprint(len(large), " <nil>") {
			t.Fatalf("%q, %v", body, err)
		}
	}
	r, err := client.Get(s.URL + "/close") // whose end is the connection's
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if body, err := io.ReadAll(r.Body); err != nil || len(body) != len(large) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func listen(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c.(*net.TCPConn))
		}
	}()
	return l.Addr().String()
}

func TestDialerHalfClose(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	addr := listen(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // until the other side has said everything
		_, _ = c.Write(append([]byte("got "), all...))
		_ = c.CloseWrite()
		_, err := c.Read(make([]byte, 1))
		closed <- err
	})
	c, err := Dialer(startTunnel)(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr().String() != addr || c.LocalAddr().String() == "" {
		t.Errorf("addresses %v and %v", c.LocalAddr(), c.RemoteAddr())
	}
	_, _ = io.WriteString(c, "hello")
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "got hello" {
		t.Errorf("%q, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Errorf("the connection on the host: %v", err)
	}
}

func TestDialerDeadlineAndClose(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	addr := listen(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		close(closed)
	})
	c, err := Dialer(startTunnel)(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	<-closed
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("write after close: no error")
	}
}

func TestDialerRefused(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:1" // nobody's
	dial := Dialer(startTunnel)
	if _, err := dial(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	if _, err := dial(t.Context(), "unix", "/x"); err == nil {
		t.Error("unix: no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(ctx, "tcp", addr); err == nil {
		t.Error("cancelled: no error")
	}
}

func FuzzTunnel(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}\x00\x00\x00\x01x\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x0f{\"error\":\"no\"}\n"))
	f.Add([]byte("bash: not found\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dial := Dialer(func(context.Context, ...string) io.ReadWriteCloser {
			return &canned{strings.NewReader(string(data))}
		})
		c, err := dial(t.Context(), "tcp", "x:1")
		if err != nil {
			return
		}
		got, _ := io.ReadAll(c)
		if len(got) > len(data) {
			t.Errorf("%d bytes out of %d", len(got), len(data))
		}
		_ = c.Close()
	})
}

type canned struct{ io.Reader }

func (*canned) Write(p []byte) (int, error) { return len(p), nil }
func (*canned) Close() error                { return nil }
