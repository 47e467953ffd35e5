package httpd_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/embedded"
	"github.com/kkbundle/kkbundle/registry/httpd"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// TestLateRequest: a client that gets no processor time for 45 s after it connected is answered. Its connection was
// closed after 10 s, and containerd does not always repeat the request.
func TestLateRequest(t *testing.T) {
	b := bundletest.NewBuilder(t)
	b.File("https://files.example/x", "x", nil, []byte("content"))
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{b.Bundle().Path}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := embedded.Open(t.Context(), embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, run := range map[string]func(context.Context, net.Listener,
		func() *tls.Certificate) error{"serve": s.Run, "registry serve": r.Run} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { askLate(t, run) }) })
	}
}

func askLate(t *testing.T, run func(context.Context, net.Listener, func() *tls.Certificate) error) {
	client, server := net.Pipe()
	defer client.Close()
	ctx, stop := context.WithCancel(t.Context())
	l := &oneConnection{c: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.c <- server
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, l, nil) }()
	time.Sleep(45 * time.Second)
	_, err := io.WriteString(client, "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(bufio.NewReader(client), nil)
	}
	if err != nil {
		t.Errorf("no answer: %v", err)
	} else if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s, %v", res.Status, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A oneConnection is a listener with one connection, whose time is that of synctest.
type oneConnection struct {
	c      chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *oneConnection) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *oneConnection) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *oneConnection) Addr() net.Addr { return &net.TCPAddr{} }

// TestOneAddressTakesNotAllPlaces: a client that opens all connections that the server has, and sends nothing, does
// not keep others out.
func TestOneAddressTakesNotAllPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4096
		ctx, stop := context.WithCancel(t.Context())
		l := &oneConnection{c: make(chan net.Conn), closed: make(chan struct{})}
		ended := make(chan error, 1)
		handler := http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request,
		) {
			w.WriteHeader(http.StatusNoContent)
		})
		server := httpd.Server{
			Handler: handler, Limits: httpd.Limits{Idle: 2 * time.Minute},
			Logger: slog.New(slog.DiscardHandler),
		}
		go func() { ended <- server.Run(ctx, l) }()
		var all []net.Conn
		arrive := func(ip string) {
			client, inner := net.Pipe()
			all = append(all, client)
			l.c <- from{inner, ip}
		}
		for range most {
			arrive("10.0.0.1")
		}
		time.Sleep(time.Second)
		go arrive("10.0.0.2")
		time.Sleep(time.Second)
		last := all[len(all)-1]
		if err := last.SetDeadline(time.Now().Add(30 * time.Second)); err != nil { // before the others are given up
			t.Fatal(err)
		}
		_, err := io.WriteString(last, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if err == nil {
			var res *http.Response
			if res, err = http.ReadResponse(bufio.NewReader(last), nil); err == nil {
				err = res.Body.Close()
			}
		}
		if err != nil {
			t.Errorf("another address gets no answer: %v", err)
		}
		for _, c := range all {
			_ = c.Close()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type from struct {
	net.Conn
	ip string
}

// RemoteAddr implements net.Conn.
func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.ip), Port: 1} }
