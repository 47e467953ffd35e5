package task

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
)

// Helper starts kkbundle-node on the host and returns its standard input and output.
func (t *Host) Helper(ctx context.Context, args ...string) *host.Stream {
	return host.Open(WithoutOutput(ctx), t.Conn, append([]string{host.HelperPath}, args...)...)
}

// Dial makes a TCP connection from the host, through the helper's session. Firewalls need to allow only SSH.
func (t *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	start := func(ctx context.Context, args ...string) io.ReadWriteCloser { return t.Helper(ctx, args...) }
	return node.Dialer(start)(ctx, network, addr)
}

// ConnectionsPerHost limits the parallel connections through one host.
const ConnectionsPerHost = 8

// Transport returns an HTTP transport that connects from the host. It trusts the authorities in caPEM, or without them
// the authorities of this machine.
func (t *Host) Transport(caPEM []byte) (*http.Transport, error) {
	var roots *x509.CertPool
	if len(caPEM) > 0 {
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(caPEM) {
			return nil, errors.New("certificate authority: not PEM")
		}
	}
	return &http.Transport{
		DialContext:         t.Dial,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 30 * time.Second,
		MaxConnsPerHost:     ConnectionsPerHost,
		MaxIdleConnsPerHost: ConnectionsPerHost,
		IdleConnTimeout:     30 * time.Second,
		// several connections, not one HTTP/2
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}
