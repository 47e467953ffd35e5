package inpod

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// ServerName is the name in the registry's certificate.
const ServerName = "registry.kkbundle.internal"

const (
	maxConnections = 256
	dialTimeout    = 10 * time.Second
	firstTimeout   = 10 * time.Second // for a client's first byte
	tlsHandshake   = 0x16
)

// A Proxy forwards connections of the node's runtime to the registry, over TLS.
type Proxy struct {
	// Target is the registry's HOST:PORT.
	Target string
	// Authority is the PEM of the only authority that the registry's certificate may have.
	Authority []byte
}

// Run forwards until ctx ends, and closes the listener.
func (p Proxy) Run(ctx context.Context, l net.Listener) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.Authority) {
		return errors.Join(errors.New("the authority's file has no certificate"), l.Close())
	}
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: dialTimeout},
		Config:    &tls.Config{RootCAs: roots, ServerName: ServerName, MinVersion: tls.VersionTLS13},
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	bounded := capped.NewListener(l, maxConnections) // all are of the node's address: those that do nothing make place
	for {
		client, err := bounded.AcceptConn()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen on %s: %w", l.Addr(), err)
		}
		all.Go(func() { p.forward(ctx, dialer, client) })
	}
}

// forward copies both directions until both have ended, or one failed. The client sees a failure as a closed
// connection and tries again.
func (p Proxy) forward(ctx context.Context, dialer *tls.Dialer, client *capped.Conn) {
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client.OnClose(cancel)
	first, err := firstByte(client)
	if err != nil {
		return
	}
	if first[0] == tlsHandshake {
		refuseTLS(client)
		return
	}
	server, err := dialer.DialContext(ctx, "tcp", p.Target)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(client.Close(), server.Close()) })()
	if _, err := server.Write(first); err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		both.Go(func() {
			to, from := way[0], way[1]
			_, err := io.Copy(to, from)
			if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
				return
			}
			_ = errors.Join(to.Close(), from.Close())
		})
	}
	both.Wait()
}

// firstByte reads a connection's first byte.
func firstByte(c net.Conn) ([]byte, error) {
	b := make([]byte, 1)
	if err := c.SetReadDeadline(time.Now().Add(firstTimeout)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	return b, c.SetReadDeadline(time.Time{})
}

// refuseTLS gives the answer after which a runtime takes plain HTTP. The registry's answer to such a request would
// wait for the end of a line, which a random handshake may lack.
func refuseTLS(c net.Conn) {
	const most = 64 << 10
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, err := io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\nplain HTTP only\n")
	if half, ok := c.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, most) // unread bytes would reset the connection, and the answer with it
	}
}
