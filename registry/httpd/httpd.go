// Package httpd runs kkbundle's HTTP/1.1 servers, with or without TLS, and limits the cost of slow clients.
package httpd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// maxClients limits simultaneous connections. A further one takes the place of a quiet one, see capped.Listener.
const maxClients = 4096

// Limits are the limits for a client. Zero is unlimited.
type Limits struct {
	Write time.Duration // for a response; a Response extends it
	// for a connection between requests, and for a request's header: a busy client may need long for it
	Idle      time.Duration
	Grace     time.Duration // for running transfers at shutdown
	MaxHeader int           // bytes of a request's header
}

// A Server serves HTTP on a listener.
type Server struct {
	Handler     http.Handler
	Certificate func() *tls.Certificate // called for every handshake; nil means plain HTTP
	Limits      Limits
	Logger      *slog.Logger
}

// Run serves until ctx ends, waits for running transfers up to Limits.Grace, and closes the listener.
func (s Server) Run(ctx context.Context, l net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one transfer per connection: faster than HTTP/2 for large ones, with bounded memory
	server := &http.Server{
		Handler: s.Handler, Protocols: protocols, ReadHeaderTimeout: s.Limits.Idle, WriteTimeout: s.Limits.Write,
		IdleTimeout:    s.Limits.Idle,
		MaxHeaderBytes: s.Limits.MaxHeader, ErrorLog: log.New(debugWriter{s.Logger}, "", 0),
	}
	l = capped.NewListener(l, maxClients)
	if s.Certificate != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate(), nil },
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("listen on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Limits.Grace)
	defer cancel()
	err := server.Shutdown(end)
	if err != nil {
		s.Logger.Warn("transfers were cut off", "after", s.Limits.Grace)
		err = server.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// debugWriter logs net/http's messages about single connections at debug level.
type debugWriter struct{ log *slog.Logger }

// Write implements io.Writer.
func (q debugWriter) Write(b []byte) (int, error) {
	q.log.Debug("connection", "message", string(b))
	return len(b), nil
}

// A Response counts the sent bytes, and limits each write's duration instead of their sum.
type Response struct {
	http.ResponseWriter
	Control *http.ResponseController
	Status  int
	Sent    int64

	patience time.Duration
}

// NewResponse returns a Response that limits each write to patience.
func NewResponse(w http.ResponseWriter, patience time.Duration) *Response {
	return &Response{ResponseWriter: w, Control: http.NewResponseController(w), patience: patience}
}

// Unwrap is for http.ResponseController.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *Response) WriteHeader(status int) {
	w.extend(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *Response) Write(b []byte) (int, error) {
	w.extend(http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.Sent += int64(n)
	return n, err
}

// extend sets the deadline of the next write, and records the first status.
func (w *Response) extend(status int) {
	w.Status = cmp.Or(w.Status, status)
	_ = w.Control.SetWriteDeadline(time.Now().Add(w.patience)) // only test servers lack deadlines
}
