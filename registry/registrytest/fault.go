package registrytest

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
)

// A Fault makes some requests to the registry fail; the registry itself is unaffected.
type Fault struct {
	Method string         // "" matches any method
	Path   *regexp.Regexp // matched against the URL's path; nil matches any
	Skip   int            // number of matching requests that pass first
	Times  int            // number of failures after that; 0 is one, below 0 all
	Effect Effect
}

// An Effect changes the handling of a request: a handler around the real one.
type Effect func(next http.Handler) http.Handler

// Fail answers with status instead of the registry; retryAfter is the header of that name, "" for none.
func Fail(status int, retryAfter string) Effect { return FailWith(status, retryAfter, "") }

// FailWith is Fail with a body, such as a registry's JSON errors.
func FailWith(status int, retryAfter, body string) Effect {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if retryAfter != "" {
				w.Header().Set("Retry-After", retryAfter)
			}
			if body != "" {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // the client may be gone
		})
	}
}

// CutRequest breaks the connection after n bytes of the request's body. The registry does not see the request.
func CutRequest(n int64) Effect {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, n)
			panic(http.ErrAbortHandler)
		})
	}
}

// CutResponse breaks the connection after n bytes of the answer's body.
func CutResponse(n int64) Effect {
	return around(func(w http.ResponseWriter) http.ResponseWriter { return &cutWriter{ResponseWriter: w, left: n} })
}

// Stall answers nothing until the client gives up or the server is closed.
func Stall() Effect {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the client goes
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		})
	}
}

// LieAboutLength adds delta to the answer's Content-Length.
func LieAboutLength(delta int64) Effect {
	return changeHeader(func(h http.Header) {
		if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil {
			h.Set("Content-Length", strconv.FormatInt(max(n+delta, 0), 10))
		}
	})
}

// Corrupt flips a bit of the first byte of every piece of the answer's body.
func Corrupt() Effect {
	return around(func(w http.ResponseWriter) http.ResponseWriter { return corruptWriter{w} })
}

// Header sets a header of the answer, after the registry set its own; "" removes it.
func Header(key, value string) Effect {
	return changeHeader(func(h http.Header) {
		if h.Del(key); value != "" {
			h.Set(key, value)
		}
	})
}

// AddFaults adds to the faults of Options.
func (s *Server) AddFaults(faults ...Fault) { s.faults.add(faults) }

// ClearFaults removes all faults.
func (s *Server) ClearFaults() { s.faults.clear() }

func around(wrap func(http.ResponseWriter) http.ResponseWriter) Effect {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrap(w), r) })
	}
}

func changeHeader(change func(http.Header)) Effect {
	return around(func(w http.ResponseWriter) http.ResponseWriter {
		return &headerWriter{ResponseWriter: w, change: change}
	})
}

type faultList struct {
	mu     sync.Mutex
	faults []*faultState
}

type faultState struct {
	Fault
	seen int
}

func newFaultList(faults []Fault) *faultList {
	l := &faultList{}
	l.add(faults)
	return l
}

func (l *faultList) add(faults []Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range faults {
		l.faults = append(l.faults, &faultState{Fault: f})
	}
}

func (l *faultList) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = nil
}

func (l *faultList) inject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if effect := l.effect(r); effect != nil {
			effect(next).ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// effect counts the request for every matching fault and returns the effect of the first that applies.
func (l *faultList) effect(r *http.Request) Effect {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found Effect
	for _, f := range l.faults {
		if f.Method != "" && f.Method != r.Method || f.Path != nil && !f.Path.MatchString(r.URL.Path) {
			continue
		}
		f.seen++
		times := max(f.Times, 1)
		due := f.seen > f.Skip && (f.Times < 0 || f.seen <= f.Skip+times)
		if due && found == nil {
			found = f.Effect
		}
	}
	return found
}

type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if int64(len(p)) < w.left {
		w.left -= int64(len(p))
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
	panic(http.ErrAbortHandler)
}

type corruptWriter struct{ http.ResponseWriter }

func (w corruptWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return w.ResponseWriter.Write(p)
	}
	bad := append([]byte{p[0] ^ 1}, p[1:]...)
	return w.ResponseWriter.Write(bad)
}

// headerWriter changes the header at the last moment.
type headerWriter struct {
	http.ResponseWriter
	change func(http.Header)
	sent   bool
}

func (w *headerWriter) WriteHeader(status int) {
	if !w.sent {
		w.sent = true
		w.change(w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *headerWriter) Write(p []byte) (int, error) {
	if !w.sent {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}
