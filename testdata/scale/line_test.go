//go:build linux

package scale

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// A line is what a proxy on loopback makes of connections to a server: what comes back shares a rate, and all bytes
// arrive later than they were sent. It does not model that TCP begins slowly.
type line struct {
	*rate.Limiter               // of bytes to the clients, shared by all connections
	Delay         time.Duration // in each direction: half of a round trip
}

// lineChunk is how much goes over a line at a time.
const lineChunk = 16 << 10

// gigabit is a line of 1 Gbit/s and a round trip of 20 ms.
func gigabit() line {
	return line{rate.NewLimiter(1e9/8, 16*lineChunk), 10 * time.Millisecond}
}

// To starts a proxy to a server and returns its address.
func (l line) To(t testing.TB, server string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		open.Wait()
	})
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			open.Go(func() { l.connect(t, client, server) })
		}
	})
	return listener.Addr().String()
}

// connect carries a connection until both sides have ended.
func (l line) connect(t testing.TB, client net.Conn, address string) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { l.carry(server, client, rate.NewLimiter(rate.Inf, lineChunk)) })
	both.Go(func() { l.carry(client, server, l.Limiter) })
	both.Wait()
}

// carry copies one direction.
func (l line) carry(to, from net.Conn, limit *rate.Limiter) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	const onTheWay = 4 << 20 / lineChunk // more than a line of 1 Gbit/s holds in its delay
	sent := make(chan chunk, onTheWay)
	var writer sync.WaitGroup
	writer.Go(func() {
		var err error
		for c := range sent {
			time.Sleep(time.Until(c.due))
			if err == nil {
				_, err = to.Write(c.data)
			}
		}
		if tcp, ok := to.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	})
	for {
		data := make([]byte, lineChunk)
		n, err := from.Read(data)
		if n > 0 {
			now := time.Now()
			wait := limit.ReserveN(now, n).DelayFrom(now)
			time.Sleep(wait)
			sent <- chunk{data[:n], now.Add(wait + l.Delay)}
		}
		if err != nil { // the end, or a side that is gone: the other one sees it
			break
		}
	}
	close(sent)
	writer.Wait()
}
