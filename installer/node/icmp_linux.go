package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
)

// Types of ICMP echo (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	echoHeader               = 8
)

// An echo is a socket for ICMP echo with one other machine.
type echo struct {
	conn *net.IPConn
	six  bool
	id   [2]byte
}

func openEcho(ctx context.Context, a netip.Addr) (*echo, error) {
	network := "ip4:icmp"
	if a.Is6() {
		network = "ip6:ipv6-icmp"
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, a.String())
	if err != nil {
		return nil, err
	}
	e := &echo{conn: conn.(*net.IPConn), six: a.Is6()}
	_, _ = rand.Read(e.id[:]) // never fails
	return e, nil
}

// send sends an echo request whose IP packet has this size.
func (e *echo) send(size int) error {
	body := make([]byte, max(size-headers(e.six)+udpHeader, echoHeader)) // ICMP's header is as long as UDP's
	body[0] = echoRequest4
	if e.six {
		body[0] = echoRequest6 // the kernel adds the checksum
	}
	copy(body[4:], e.id[:])
	binary.BigEndian.PutUint16(body[6:], uint16(size))
	if !e.six {
		binary.BigEndian.PutUint16(body[2:], checksum(body))
	}
	_, err := e.conn.Write(body)
	return err
}

// receive returns the size of an answered packet.
func (e *echo) receive(buf []byte, until time.Time) (size int, err error) {
	if err := e.conn.SetReadDeadline(until); err != nil {
		return 0, err
	}
	for {
		n, _, err := e.conn.ReadFromIP(buf) // without the IPv4 header
		if err != nil {
			return 0, err
		}
		reply := byte(echoReply4)
		if e.six {
			reply = echoReply6
		}
		if n >= echoHeader && buf[0] == reply && [2]byte(buf[4:6]) == e.id {
			return int(binary.BigEndian.Uint16(buf[6:])), nil
		}
	}
}

// ping reports whether a machine answers ICMP echo.
func ping(ctx context.Context, a netip.Addr) (bool, error) {
	const tries, small = 3, 84
	const wait = 500 * time.Millisecond
	e, err := openEcho(ctx, a)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return false, err
		}
		return false, nil // no route: nobody answers
	}
	defer func() { _ = e.conn.Close() }() // the result is complete
	buf := make([]byte, 64<<10)
	for range tries {
		if err := e.send(small); err != nil {
			return false, nil
		}
		switch _, err := e.receive(buf, time.Now().Add(wait)); {
		case err == nil:
			return true, nil
		case !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil:
			return false, ctx.Err()
		}
	}
	return false, nil
}
