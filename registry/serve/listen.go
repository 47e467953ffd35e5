package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kkbundle/kkbundle/registry/httpd"
)

// limits are the server's timeouts. Write is for each chunk of a blob.
type limits struct {
	httpd.Limits
	body time.Duration // for a body, which is never read
}

func defaultLimits() limits {
	return limits{
		httpd.Limits{Write: 30 * time.Second, Idle: time.Minute, Grace: 20 * time.Second, MaxHeader: 32 << 10},
		5 * time.Second,
	}
}

// CheckListen refuses unprotected access: addresses beyond this host require TLS or an explicit choice of plain HTTP.
func CheckListen(address string, secure, plainHTTP bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address %q: want HOST:PORT, or :PORT for all addresses of this host", address)
	}
	if secure && plainHTTP {
		return errors.New("TLS and --plain-http exclude each other")
	}
	ip := net.ParseIP(host)
	if host == "localhost" || ip != nil && ip.IsLoopback() || secure || plainHTTP {
		return nil
	}
	return fmt.Errorf("%s is reachable from other hosts: use --tls-auto, or --tls-cert and --tls-key; --plain-http allows it without TLS, if you trust the network", address)
}

// Run serves on the listener until ctx ends, gives running transfers some time to finish, and closes it. certificate is
// called at every handshake; nil is plain HTTP.
func (s *Server) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	return httpd.Server{Handler: s, Certificate: certificate, Limits: s.limits.Limits, Logger: s.log}.Run(ctx, l)
}
