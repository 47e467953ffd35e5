package embedded

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/kkbundle/kkbundle/registry/htpasswd"
)

// Run serves on the listener until ctx ends, gives running transfers some time to finish, and closes it. certificate is
// called at every handshake; nil is plain HTTP.
func (r *Registry) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	l = netutil.LimitListener(l, maxClients)
	if certificate != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"http/1.1"}, // one transfer per connection: faster than HTTP/2 for large ones
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil },
		})
	}
	return run(ctx, l, r, r.log)
}

// RunMetrics serves /metrics and /healthz on a separate listener until ctx ends.
func (r *Registry) RunMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", r.exposition)
	mux.HandleFunc("/healthz", r.health)
	return run(ctx, l, mux, r.log)
}

func run(ctx context.Context, l net.Listener, h http.Handler, logger *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(quietly{logger}, "", 0),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("listen on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(end)
	if err != nil {
		logger.Warn("transfers were cut off", "after", grace)
		err = server.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
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

// ServeHTTP serves /v2/ and /healthz.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	control := http.NewResponseController(w)
	in := &body{ReadCloser: req.Body, control: control}
	out := &response{ResponseWriter: w, control: control}
	req.Body = in
	r.metrics.inFlight.Add(1)
	defer func() {
		r.metrics.inFlight.Add(-1)
		took := time.Since(start)
		r.metrics.count(req.Method, out.status, traffic{in.read, out.sent, took})
		r.log.Debug("request", "method", req.Method, "path", req.URL.Path, "status", out.status, "received", in.read,
			"sent", out.sent, "client", req.RemoteAddr, "took", took)
	}()
	out.Header().Set("X-Content-Type-Options", "nosniff")
	if req.URL.Path == "/healthz" {
		r.health(out, req)
		return
	}
	if err := r.users.Admit(req); err != nil {
		refuse(out, err)
		return
	}
	if req.URL.Path != "/v2" && !strings.HasPrefix(req.URL.Path, "/v2/") {
		http.Error(out, "a container registry: its API is below /v2/", http.StatusNotFound)
		return
	}
	r.app.ServeHTTP(out, req)
}

// refuse answers with the distribution specification's error body.
func refuse(w http.ResponseWriter, err error) {
	status, code := http.StatusInternalServerError, "UNKNOWN"
	switch {
	case errors.Is(err, htpasswd.ErrRefused):
		status, code = http.StatusUnauthorized, "UNAUTHORIZED"
		w.Header().Set("WWW-Authenticate", htpasswd.Challenge)
	case errors.Is(err, htpasswd.ErrBusy):
		status, code = http.StatusTooManyRequests, "TOOMANYREQUESTS"
		w.Header().Set("Retry-After", htpasswd.Retry)
	}
	text, jsonErr := json.Marshal(map[string][]map[string]string{"errors": {{"code": code, "message": err.Error()}}})
	if jsonErr != nil {
		text = []byte(`{"errors":[{"code":"UNKNOWN"}]}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone
}

// health reports whether the directory can be read.
func (r *Registry) health(w http.ResponseWriter, _ *http.Request) {
	if _, err := os.ReadDir(r.dir); err != nil {
		r.log.Error("the registry's directory cannot be read", "error", err)
		http.Error(w, "storage cannot be read", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n") // the client may be gone
}

// A body counts the bytes read, and limits the time for each piece instead of the whole.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	read    int64
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(stallTimeout)) // only test servers lack deadlines
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}

// A response counts the bytes sent, and limits the time for each piece.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
	sent    int64
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(stallTimeout)) // only test servers lack deadlines
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}
