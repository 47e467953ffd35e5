// Package httpd listens for the servers of kkbundle: HTTP/1.1, with TLS or without, and with bounds on what slow clients cost.
package httpd

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

// maxClients is the number of connections at a time; more wait.
const maxClients = 4096

// Limits bound how long a server waits for a client. Zero is no limit.
type Limits struct {
	Header    time.Duration // for a request's header
	Write     time.Duration // for an answer; a Response extends it
	Idle      time.Duration // of a connection between requests
	Grace     time.Duration // for running transfers at shutdown
	MaxHeader int           // bytes of a request's header
}

// A Server answers on a listener.
type Server struct {
	Handler     http.Handler
	Certificate func() *tls.Certificate // asked at every handshake; nil is plain HTTP
	Limits      Limits
	Logger      *slog.Logger
}

// Run answers until ctx ends, gives transfers that run some time to finish, and closes the listener.
func (s Server) Run(ctx context.Context, l net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one transfer per connection: faster than HTTP/2 for large ones, with bounded memory
	server := &http.Server{
		Handler: s.Handler, Protocols: protocols, ReadHeaderTimeout: s.Limits.Header, WriteTimeout: s.Limits.Write, IdleTimeout: s.Limits.Idle,
		MaxHeaderBytes: s.Limits.MaxHeader, ErrorLog: log.New(quietly{s.Logger}, "", 0),
	}
	l = netutil.LimitListener(l, maxClients)
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

// quietly logs what net/http says about single connections for debugging only.
type quietly struct{ log *slog.Logger }

// Write implements io.Writer.
func (q quietly) Write(b []byte) (int, error) {
	q.log.Debug("connection", "message", string(b))
	return len(b), nil
}

// A Response counts the bytes that it sends, and gives a client time for each write instead of for all of them.
type Response struct {
	http.ResponseWriter
	Control *http.ResponseController
	Status  int
	Sent    int64

	patience time.Duration
}

// NewResponse returns a Response that waits for the client up to patience at each write.
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

// extend begins the time for a write. The first status counts.
func (w *Response) extend(status int) {
	if w.Status == 0 {
		w.Status = status
	}
	_ = w.Control.SetWriteDeadline(time.Now().Add(w.patience)) // only test servers lack deadlines
}
