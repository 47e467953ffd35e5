package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

const (
	maxHeader  = 32 << 10 // bytes of a request's header
	maxClients = 4096     // concurrent connections; more wait
)

// limits are the server's timeouts.
type limits struct {
	header time.Duration // for a request's header
	body   time.Duration // for a body, which is never read
	write  time.Duration // for each 64 KiB; slower clients are disconnected
	idle   time.Duration // of a connection between requests
	grace  time.Duration // for running transfers at shutdown
}

func defaultLimits() limits {
	return limits{header: 10 * time.Second, body: 5 * time.Second, write: 30 * time.Second, idle: time.Minute, grace: 20 * time.Second}
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
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one transfer per connection: faster than HTTP/2 for large ones, with bounded memory
	server := &http.Server{
		Handler: s, Protocols: protocols, ReadHeaderTimeout: s.limits.header, WriteTimeout: s.limits.write, IdleTimeout: s.limits.idle,
		MaxHeaderBytes: maxHeader, ErrorLog: log.New(quietly{s.log}, "", 0),
	}
	l = netutil.LimitListener(l, maxClients)
	if certificate != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil },
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("listen on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.grace)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		s.log.Warn("transfers were cut off", "after", s.limits.grace)
		return errors.Join(server.Close(), ignoreClosed(<-ended))
	}
	return ignoreClosed(<-ended)
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// quietly logs net/http's messages about single connections at debug level.
type quietly struct{ log *slog.Logger }

// Write implements io.Writer.
func (q quietly) Write(b []byte) (int, error) {
	q.log.Debug("connection", "message", string(b))
	return len(b), nil
}
