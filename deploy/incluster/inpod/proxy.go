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
)

// ServerName is the name in the registry's certificate.
const ServerName = "registry.kkbundle.internal"

const (
	maxConnections = 256
	dialTimeout    = 10 * time.Second
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
	turns := make(chan struct{}, maxConnections)
	for {
		turns <- struct{}{}
		client, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen on %s: %w", l.Addr(), err)
		}
		all.Go(func() {
			defer func() { <-turns }()
			p.forward(ctx, dialer, client)
		})
	}
}

// forward copies both directions until both have ended, or one failed. The client sees a failure as a closed connection and
// tries again.
func (p Proxy) forward(ctx context.Context, dialer *tls.Dialer, client net.Conn) {
	defer client.Close()
	server, err := dialer.DialContext(ctx, "tcp", p.Target)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(client.Close(), server.Close()) })()
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
