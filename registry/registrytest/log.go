package registrytest

import (
	"cmp"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// A Request is a request received by the Server.
type Request struct {
	Method string
	Path   string
	Query  string // as sent, without "?"
	Auth   string // the scheme of the Authorization header: "Basic", "Bearer" or ""; never the secret
	Status int    // 0 if no answer has begun
	Bytes  int64  // bytes read of the request's body
}

// Requests returns the requests so far, in the order of arrival. A request is listed before its handler runs and has
// its status before the client sees it, so a client with an answer finds its own request here.
func (s *Server) Requests() []Request {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	all := make([]Request, len(s.log.requests))
	for i, r := range s.log.requests {
		all[i] = *r
	}
	return all
}

// Count returns the number of requests so far with that method ("" is any) and a path that matches the regular
// expression.
func (s *Server) Count(method, path string) int {
	re := regexp.MustCompile(path)
	n := 0
	for _, r := range s.Requests() {
		if (method == "" || r.Method == method) && re.MatchString(r.Path) {
			n++
		}
	}
	return n
}

// Received returns the sum of the request bodies read so far, in bytes.
func (s *Server) Received() int64 {
	var n int64
	for _, r := range s.Requests() {
		n += r.Bytes
	}
	return n
}

// ForgetRequests resets Requests, Count and Received.
func (s *Server) ForgetRequests() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.requests = nil
}

type requestLog struct {
	mu       sync.Mutex // guards the requests' fields too
	requests []*Request
}

func (l *requestLog) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		seen := &Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Auth: scheme}
		l.mu.Lock()
		l.requests = append(l.requests, seen)
		l.mu.Unlock()
		r = r.WithContext(r.Context()) // a copy: net/http answers early where it finds its own body unread
		r.Body = &countedBody{ReadCloser: r.Body, log: l, seen: seen}
		sw := &statusWriter{ResponseWriter: w, log: l, seen: seen}
		next.ServeHTTP(sw, r)
		sw.begin(http.StatusOK)
	})
}

type countedBody struct {
	io.ReadCloser
	log  *requestLog
	seen *Request
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.log.mu.Lock()
	b.seen.Bytes += int64(n)
	b.log.mu.Unlock()
	return n, err
}

type statusWriter struct {
	http.ResponseWriter
	log  *requestLog
	seen *Request
}

// begin records the status when an answer begins.
func (w *statusWriter) begin(status int) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.seen.Status = cmp.Or(w.seen.Status, status)
}

func (w *statusWriter) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

func (w *statusWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
