package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"

	"golang.org/x/sys/unix"
)

// ServeListen listens on the requested ports, and answers peers that know the token, until in ends, ctx is done or
// ListenTime is over.
func ServeListen(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, ListenTime)
	defer cancel()
	var l Listen
	if err := wire.ReadMessage(in, &l, wire.MaxAnswer); err != nil {
		return err
	}
	token, err := parseToken(l.Token)
	if err != nil {
		return err
	}
	if !l.Address.IsValid() || l.Address.IsUnspecified() {
		return errors.New("there is no address to listen on")
	}
	if len(l.Ports) > maxListened {
		return fmt.Errorf("%d ports to listen on, the limit is %d", len(l.Ports), maxListened)
	}
	answer := Listening{Ports: make([]PortState, len(l.Ports))}
	for i, p := range l.Ports {
		answer.Ports[i] = PortState{ListenPort: p}
		closer, err := listenOn(token, netip.AddrPortFrom(l.Address, uint16(p.Port)), p)
		switch {
		case err == nil:
			defer func() { _ = closer.Close() }() // nobody is left to tell
		case errors.Is(err, unix.EADDRINUSE):
			answer.Ports[i].Taken = true
		default:
			answer.Ports[i].Problem = reason(err)
		}
	}
	if err := wire.WriteMessage(out, answer); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in) // wait for its end
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}

func listenOn(token []byte, at netip.AddrPort, p ListenPort) (io.Closer, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if p.Network == "udp" {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err == nil {
			go answerUDP(conn, token)
		}
		return conn, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err == nil {
		go answerTCP(l, token)
	}
	return l, err
}

// answerTCP returns the token to peers that send it.
func answerTCP(l net.Listener, token []byte) {
	const most = 256 // concurrent connections
	slots := make(chan struct{}, most)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the peer left before it was accepted
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer func() { _ = conn.Close() }() // the peer sees the result
			got := make([]byte, len(token))
			if conn.SetDeadline(time.Now().Add(dialPatient)) != nil {
				return
			}
			if _, err := io.ReadFull(conn, got); err == nil && bytes.Equal(got, token) {
				_, _ = conn.Write(token)
			}
		}()
	}
}

// answerUDP returns the first bytes of packets that begin with the token: never more than were received.
func answerUDP(conn *net.UDPConn, token []byte) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if size := len(token) + sizeBytes; err == nil && n >= size && bytes.HasPrefix(buf[:n], token) {
			_, _ = conn.WriteToUDPAddrPort(buf[:size], from) // the peer retries
		}
	}
}
