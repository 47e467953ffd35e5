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

// limits are how long the server waits for a client. It is given Write for each 64 KiB.
type limits struct {
	httpd.Limits
	body time.Duration // for a body, which nothing here reads
}

func defaultLimits() limits {
	return limits{
		httpd.Limits{Header: 10 * time.Second, Write: 30 * time.Second, Idle: time.Minute, Grace: 20 * time.Second, MaxHeader: 32 << 10},
		5 * time.Second,
	}
}

// CheckListen refuses to let others see or change what is sent: off the host it takes TLS, or that plain HTTP was asked
// for by name.
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
	return fmt.Errorf("%s can be reached from other hosts: use --tls-auto, or --tls-cert and --tls-key; --plain-http allows it without TLS, if you trust the network", address)
}

// Run answers on the listener until ctx ends, gives transfers that run some time to finish, and closes it. certificate is
// asked at every handshake; nil is plain HTTP.
func (s *Server) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	return httpd.Server{Handler: s, Certificate: certificate, Limits: s.limits.Limits, Logger: s.log}.Run(ctx, l)
}
