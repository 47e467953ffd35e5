// Package pace limits the bytes that are sent in a second.
package pace

import (
	"context"
	"io"
	"net/http"

	"golang.org/x/time/rate"
)

// piece is the number of bytes that take a turn together: many that share a slow limit wait for each other briefly.
const piece = 16 << 10

// Least is the lowest limit that can be set: below it, connections that wait for their turn seem dead.
const Least = 4 * piece

// A Limit is shared by all readers and transports made from it: together they take so many bytes a second. nil limits
// nothing. It is safe for concurrent use.
type Limit struct{ turns *rate.Limiter }

// PerSecond returns a limit, nil for 0. A tenth of a second's bytes may come at once.
func PerSecond(bytes int64) *Limit {
	if bytes <= 0 {
		return nil
	}
	const together = 10
	return &Limit{rate.NewLimiter(rate.Limit(bytes), max(piece, int(bytes/together)))}
}

// A WaitError is a wait for a turn that ended with its context, or that the context has no time for. What was read is
// not passed on.
type WaitError struct{ Err error }

// Error returns the context's reason.
func (e *WaitError) Error() string { return e.Err.Error() }

// Unwrap returns the context's error.
func (e *WaitError) Unwrap() error { return e.Err }

// Reader returns a reader whose bytes count. A wait for a turn ends with ctx: Read returns a *WaitError then.
func (l *Limit) Reader(ctx context.Context, r io.Reader) io.Reader {
	if l == nil {
		return r
	}
	return reader{func(n int) error { return l.turns.WaitN(ctx, n) }, r}
}

type reader struct {
	wait func(n int) error
	from io.Reader
}

// Read reads, and waits for the turn of what it has read.
func (r reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p[:min(len(p), piece)])
	if n == 0 {
		return n, err
	}
	if waited := r.wait(n); waited != nil {
		return 0, &WaitError{waited}
	}
	return n, err
}

// Transport returns a transport whose requests' bodies count.
func (l *Limit) Transport(t http.RoundTripper) http.RoundTripper {
	if l == nil {
		return t
	}
	return transport{l, t}
}

type transport struct {
	limit *Limit
	inner http.RoundTripper
}

// RoundTrip sends a request with the same body at the limit's pace.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return t.inner.RoundTrip(req)
	}
	out := req.Clone(req.Context())
	out.Body = t.paced(req, req.Body)
	if req.GetBody != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			b, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			return t.paced(req, b), nil
		}
	}
	return t.inner.RoundTrip(out)
}

func (t transport) paced(req *http.Request, b io.ReadCloser) io.ReadCloser {
	return body{t.limit.Reader(req.Context(), b), b}
}

// A body reads from one and closes the other.
type body struct {
	io.Reader
	io.Closer
}
