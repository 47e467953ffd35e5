package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

// LogFile is the log's name in the state directory.
const LogFile = "requests.log"

// A Request is one request as the upstream saw it.
type Request struct {
	Method string `json:"method"`
	Path   string `json:"path"` // without the query
	Status int    `json:"status"`
	Bytes  int64  `json:"bytes"`           // of the answer's body, as far as it went
	Range  string `json:"range,omitempty"` // as asked
}

// Requests returns what was asked so far, every answer that a client has seen the end of among it.
func (s *Server) Requests() ([]Request, error) {
	s.log.settle()
	f, err := os.Open(s.log.file.Name())
	if err != nil {
		return nil, fmt.Errorf("log of the upstream: %w", err)
	}
	defer f.Close()
	var requests []Request
	for d := json.NewDecoder(f); ; {
		var r Request
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return requests, nil
		} else if err != nil {
			return nil, fmt.Errorf("log of the upstream: %w", err)
		}
		requests = append(requests, r)
	}
}

// requestLog writes a line when an answer has ended.
type requestLog struct {
	mu   sync.Mutex
	file *os.File
	// answering is read-locked by every answer under way: a client has the last byte before the line is written.
	answering sync.RWMutex
}

// settle returns when every answer that was under way is in the log.
func (l *requestLog) settle() {
	l.answering.Lock()
	defer l.answering.Unlock()
}

func newRequestLog(name string) (*requestLog, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("log of the upstream: %w", err)
	}
	return &requestLog{file: f}, nil
}

func (l *requestLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

func (l *requestLog) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := Request{Method: r.Method, Path: r.URL.Path, Range: r.Header.Get("Range")}
		c := &countingWriter{ResponseWriter: w}
		l.answering.RLock()
		defer l.answering.RUnlock()
		defer func() {
			seen.Status, seen.Bytes = c.status, c.bytes
			line, err := json.Marshal(seen)
			if err != nil {
				return // it has nothing that can't be marshalled
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			_, _ = l.file.Write(append(line, '\n')) // closed already if the server is being stopped
		}()
		next.ServeHTTP(c, r)
	})
}

type countingWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (c *countingWriter) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *countingWriter) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

func (c *countingWriter) Flush() {
	if f, ok := c.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
