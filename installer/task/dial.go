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

// Dial makes a TCP connection from the host, by the helper and over the session that runs it: only SSH has to get
// through to the host.
func (t *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	start := func(ctx context.Context, args ...string) io.ReadWriteCloser { return t.Helper(ctx, args...) }
	return node.Dialer(start)(ctx, network, addr)
}

// Connections is how many Connections at a time go through one host.
const ConnectionsPerHost = 8

// Transport returns an HTTP Transport whose connections are made on the host and trust these authorities, or those of
// this machine if there are none.
func (t *Host) Transport(caPEM []byte) (*http.Transport, error) {
	var roots *x509.CertPool
	if len(caPEM) > 0 {
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(caPEM) {
			return nil, errors.New("the certificate authority is not PEM")
		}
	}
	return &http.Transport{
		DialContext:         t.Dial,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 30 * time.Second,
		MaxConnsPerHost:     ConnectionsPerHost,
		MaxIdleConnsPerHost: ConnectionsPerHost,
		IdleConnTimeout:     30 * time.Second,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // several connections, not one HTTP/2
	}, nil
}
