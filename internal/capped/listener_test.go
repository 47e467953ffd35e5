package capped_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// arrivals is a listener of connections in memory, from addresses of the test's choice.
type arrivals chan net.Conn

// Accept implements net.Listener.
func (a arrivals) Accept() (net.Conn, error) { return <-a, nil }

// Close implements net.Listener.
func (a arrivals) Close() error { return nil }

// Addr implements net.Listener.
func (a arrivals) Addr() net.Addr { return &net.TCPAddr{} }

type from struct {
	net.Conn
	ip string
}

// RemoteAddr implements net.Conn.
func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.ip), Port: 1} }

// arrive connects from an address and returns both ends.
func (a arrivals) arrive(t *testing.T, l *capped.Listener, ip string) (client net.Conn, server *capped.Conn) {
	t.Helper()
	client, inner := net.Pipe()
	go func() { a <- from{inner, ip} }()
	server, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	return client, server
}

func isOpen(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// TestListenerIsFair: an address that has taken all places, and a client that is quiet, make place for others.
func TestListenerIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := make(arrivals)
		l := capped.NewListener(a, 4)
		early, _ := a.arrive(t, l, "10.0.0.1")
		var hostile []net.Conn
		var served []*capped.Conn
		for _, ip := range []string{"2001:db8::1", "2001:db8::2", "2001:db8::3"} { // one network
			client, server := a.arrive(t, l, ip)
			hostile, served = append(hostile, client), append(served, server)
		}
		go func() { _, _ = hostile[0].Write([]byte("x")) }()
		if _, err := io.ReadFull(served[0], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		late, _ := a.arrive(t, l, "10.0.0.2")
		if !isOpen(early) || !isOpen(late) || !isOpen(hostile[0]) || isOpen(hostile[1]) || !isOpen(hostile[2]) {
			t.Error("another connection was closed than the quietest of the address with most")
		}
		if err := errors.Join(served[0].Close(), served[1].Close(), served[0].Close()); err != nil {
			t.Fatal(err)
		}
		another, _ := a.arrive(t, l, "10.0.0.3") // into the place that is free now
		if !isOpen(early) || !isOpen(late) || !isOpen(another) || !isOpen(hostile[2]) {
			t.Error("a connection was closed although a place was free")
		}
	})
}

// TestOnClose is called once, also for a connection that is closed already.
func TestOnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := make(arrivals)
		l := capped.NewListener(a, 1)
		_, server := a.arrive(t, l, "10.0.0.1")
		calls := 0
		server.OnClose(func() { calls++ })
		_, second := a.arrive(t, l, "10.0.0.1")
		_ = server.Close()
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		_ = second.Close()
		second.OnClose(func() { calls++ })
		if calls != 2 {
			t.Errorf("%d calls after a late OnClose", calls)
		}
	})
}
