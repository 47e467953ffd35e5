package embedded

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/registry/htpasswd"
	"github.com/kkbundle/kkbundle/registry/httpd"
)

// Run serves on the listener until ctx ends, gives running transfers some time to finish, and closes it. certificate is
// called at every handshake; nil is plain HTTP.
func (r *Registry) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	return httpd.Server{Handler: r, Certificate: certificate, Limits: limits(), Logger: r.log}.Run(ctx, l)
}

// RunMetrics serves /metrics and /healthz on a separate listener until ctx ends.
func (r *Registry) RunMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", r.exposition)
	mux.HandleFunc("/healthz", r.health)
	return httpd.Server{Handler: mux, Limits: limits(), Logger: r.log}.Run(ctx, l)
}

// ServeHTTP serves /v2/ and /healthz.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	out := httpd.NewResponse(w, stallTimeout)
	in := &body{ReadCloser: req.Body, control: out.Control}
	req.Body = in
	r.metrics.inFlight.Add(1)
	defer func() {
		r.metrics.inFlight.Add(-1)
		took := time.Since(start)
		r.metrics.count(req.Method, out.Status, traffic{in.read, out.Sent, took})
		r.log.Debug("request", "method", req.Method, "path", req.URL.Path, "status", out.Status, "received", in.read,
			"sent", out.Sent, "client", req.RemoteAddr, "took", took)
	}()
	out.Header().Set("X-Content-Type-Options", "nosniff")
	if req.URL.Path == "/healthz" {
		r.health(out, req)
		return
	}
	if err := r.admit(req); err != nil {
		refuse(out, err)
		return
	}
	if req.URL.Path != "/v2" && !strings.HasPrefix(req.URL.Path, "/v2/") {
		http.Error(out, "a container registry: its API is below /v2/", http.StatusNotFound)
		return
	}
	r.api(out, req)
}

// errPullOnly means that a user who may only pull sent another request: 403.
var errPullOnly = errors.New("this login may only pull")

// admit returns nil if a request may be answered.
func (r *Registry) admit(req *http.Request) error {
	name, _, ok := req.BasicAuth()
	if !ok || !r.pullers.Has(name) {
		return r.users.Admit(req)
	}
	if err := r.pullers.Admit(req); err != nil {
		return err
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		return errPullOnly
	}
	return nil
}

// refuse answers a request that is not admitted.
func refuse(w http.ResponseWriter, err error) {
	status, code := http.StatusInternalServerError, "UNKNOWN"
	switch {
	case errors.Is(err, htpasswd.ErrRefused):
		status, code = http.StatusUnauthorized, "UNAUTHORIZED"
		w.Header().Set("WWW-Authenticate", htpasswd.Challenge)
	case errors.Is(err, errPullOnly):
		status, code = http.StatusForbidden, "DENIED"
	case errors.Is(err, htpasswd.ErrBusy):
		status, code = http.StatusTooManyRequests, "TOOMANYREQUESTS"
		w.Header().Set("Retry-After", htpasswd.Retry)
	}
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	answerError(w, status, code, err.Error())
}

// answerError answers with the distribution specification's error body.
func answerError(w http.ResponseWriter, status int, code, message string) {
	text, err := json.Marshal(map[string][]map[string]string{"errors": {{"code": code, "message": message}}})
	if err != nil {
		text = []byte(`{"errors":[{"code":"UNKNOWN"}]}`)
	}
	w.Header().Set("Content-Type", "application/json")
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
