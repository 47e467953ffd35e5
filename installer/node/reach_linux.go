package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// ServeReach dials the requested targets and answers once.
func ServeReach(ctx context.Context, in io.Reader, out io.Writer) error {
	var r Reach
	if err := wire.ReadMessage(in, &r, wire.MaxAnswer); err != nil {
		return err
	}
	token, err := parseToken(r.Token)
	if err != nil {
		return err
	}
	if len(r.Targets) > maxReached {
		return fmt.Errorf("%d ports to dial, the limit is %d", len(r.Targets), maxReached)
	}
	answer := Reached{Targets: make([]ReachedTarget, len(r.Targets))}
	slots := make(chan struct{}, reachParallel)
	var all sync.WaitGroup
	for i, t := range r.Targets {
		slots <- struct{}{}
		all.Go(func() {
			answer.Targets[i] = reach(ctx, token, t)
			<-slots
		})
	}
	all.Wait()
	return wire.WriteMessage(out, answer)
}

func reach(ctx context.Context, token []byte, t ReachTarget) ReachedTarget {
	err := t.check()
	if err == nil && !t.Address.IsValid() {
		err = errors.New("it has no address")
	}
	at := netip.AddrPortFrom(t.Address, uint16(t.Port))
	var r ReachedTarget
	switch {
	case err != nil:
	case t.Network == "tcp":
		err = reachTCP(ctx, token, at, t.Service)
	case t.Service:
		err = errors.New("a service that is there already does not answer")
	default:
		var u *udpEcho
		if u, err = openUDP(ctx, token, at); err == nil {
			defer func() { _ = u.conn.Close() }() // the result is complete
			if err = u.small(ctx); err == nil && t.MTU {
				r.Want = wantedMTU(u.conn.LocalAddr())
				r.MTU = pathMTU(ctx, u, r.Want, t.Address)
			}
		}
	}
	if r.OK = err == nil; err != nil {
		r.Problem = reason(err)
	}
	if t.MTU && (t.Network == "tcp" || t.Service) {
		r.MTU, r.Want = echoMTU(ctx, t.Address)
	}
	return r
}

// errOther means the answer lacks our token.
var errOther = errors.New("another machine or a firewall answers")

func reachTCP(ctx context.Context, token []byte, at netip.AddrPort, service bool) error {
	d := net.Dialer{Timeout: dialPatient}
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil || service {
		if conn != nil {
			_ = conn.Close() // no data was sent
		}
		return err
	}
	defer func() { _ = conn.Close() }() // the result is complete
	if err := conn.SetDeadline(time.Now().Add(dialPatient)); err != nil {
		return err
	}
	got := make([]byte, len(token))
	if _, err := conn.Write(token); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, token) {
		return errOther
	}
	return nil
}

// Sizes of headers.
const (
	ipv4Header = 20
	udpHeader  = 8
	sizeBytes  = 2 // bytes of the size in our packets
)

// headers returns the total length of IP and UDP headers.
func headers(six bool) int {
	if six {
		return ipv6Header + udpHeader
	}
	return ipv4Header + udpHeader
}

// An udpEcho sends unfragmentable packets to a listener, which reports the received size.
type udpEcho struct {
	conn  *net.UDPConn
	token []byte
	six   bool
}

func openUDP(ctx context.Context, token []byte, at netip.AddrPort) (*udpEcho, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", at.String())
	if err != nil {
		return nil, err
	}
	u := &udpEcho{conn: conn.(*net.UDPConn), token: token, six: at.Addr().Is6() && !at.Addr().Is4In6()}
	if err := dontFragment(u.conn, u.six); err != nil {
		_ = conn.Close() // no data was sent
		return nil, err
	}
	return u, nil
}

// small sends small packets until one is answered.
func (u *udpEcho) small(ctx context.Context) error {
	const small = 100
	buf := make([]byte, small)
	var err error
	for _, wait := range []time.Duration{
		200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		1600 * time.Millisecond,
	} {
		if err = u.send(small); err == nil {
			_, err = u.receive(buf, time.Now().Add(wait))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// send sends a packet whose size with its IP header is size.
func (u *udpEcho) send(size int) error {
	data := make([]byte, max(size-headers(u.six), len(u.token)+sizeBytes))
	copy(data, u.token)
	binary.BigEndian.PutUint16(data[len(u.token):], uint16(size))
	_, err := u.conn.Write(data)
	return err
}

// receive returns the size of a packet that arrived.
func (u *udpEcho) receive(buf []byte, until time.Time) (size int, err error) {
	if err := u.conn.SetReadDeadline(until); err != nil {
		return 0, err
	}
	for {
		n, err := u.conn.Read(buf)
		if err != nil {
			return 0, err
		}
		if n == len(u.token)+sizeBytes && bytes.HasPrefix(buf[:n], u.token) {
			return int(binary.BigEndian.Uint16(buf[len(u.token):])), nil
		}
	}
}
