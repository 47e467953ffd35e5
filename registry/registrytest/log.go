package registrytest

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// A Request is one request as the Server saw it.
type Request struct {
	Method string
	Path   string
	Query  string // as sent, without "?"
	Auth   string // the scheme of the Authorization header: "Basic", "Bearer" or ""; never the secret
	Status int    // 0 if the connection was cut before an answer
	Bytes  int64  // of the request's body that were read
}

// Requests returns what was asked so far, in the order in which answers ended.
func (s *Server) Requests() []Request {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return slices.Clone(s.log.requests)
}

// Count returns how many requests so far had that method ("" is any) and a path that the regular expression matches.
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

// ForgetRequests empties what Requests, Count and Received look at.
func (s *Server) ForgetRequests() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.requests = nil
}

type requestLog struct {
	mu       sync.Mutex
	requests []Request
}

func (l *requestLog) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		seen := Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Auth: scheme}
		body := &countedBody{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // a copy: net/http answers early where it finds its own body unread
		r.Body = body
		sw := &statusWriter{ResponseWriter: w}
		defer func() { // also when the handler cuts the connection by panicking
			seen.Status, seen.Bytes = sw.status, body.n
			l.mu.Lock()
			l.requests = append(l.requests, seen)
			l.mu.Unlock()
		}()
		next.ServeHTTP(sw, r)
		if sw.status == 0 {
			sw.status = http.StatusOK
		}
	})
}

type countedBody struct {
	io.ReadCloser
	n int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

func (w *statusWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
