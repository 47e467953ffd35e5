// Package web has the rules for requests to web servers and registries. There is one of each: which failures pass,
// how long to wait before another attempt, which authorities to trust, where a redirect may lead, when a silent
// server is given up, and when the rest of a file belongs to its beginning. docs/reference/reliability.md lists them
// for operators.
package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// UserAgent is the name of kkbundle in requests.
const UserAgent = "kkbundle"

// MaxRetryAfter is the longest pause that a server may ask for. It ends the attempts if it asks for more.
const MaxRetryAfter = 5 * time.Minute

// A StatusError is an answer with an unexpected status.
type StatusError struct {
	Code   int
	Detail string        // the server's message, short and printable
	After  time.Duration // the pause that the server asks for, 0 for none
	By     string        // the host that answered, if a redirect of another led to it
	Err    error         // what a caller reads from the answer, for errors.As; may be nil
}

// NewStatusError returns the status of an answer, and the pause that it asks for.
func NewStatusError(resp *http.Response) *StatusError {
	return &StatusError{Code: resp.StatusCode, After: RetryAfter(resp.Header, time.Now()), By: elsewhere(resp.Request)}
}

// elsewhere returns the host of a request that redirects of another host led to, "" for the first host.
func elsewhere(req *http.Request) string {
	if req == nil {
		return ""
	}
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	if first.URL.Host == req.URL.Host {
		return ""
	}
	return req.URL.Host
}

// Line returns the status without the server's message.
func (e *StatusError) Line() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code)))
}

// Error returns the status and the server's message, and which server it is, if a redirect led there.
func (e *StatusError) Error() string {
	line := e.Line()
	if e.By != "" {
		line = fmt.Sprintf("redirected to %s, which answers %s", e.By, line)
	}
	if e.Detail == "" {
		return line
	}
	return line + ": " + e.Detail
}

// Unwrap returns what the caller has read from the answer.
func (e *StatusError) Unwrap() error { return e.Err }

// Status returns the status error in an error, nil if there is none.
func Status(err error) *StatusError {
	status, _ := errors.AsType[*StatusError](err)
	return status
}

// RetryAfter returns the pause that an answer asks for, in seconds or as a date; 0 for none.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(time.Duration(seconds)*time.Second, 0)
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(date.Sub(now), 0)
	}
	return 0
}

// Passing reports whether the same request may succeed a little later. An error with a method CanPass says so itself.
func Passing(err error) bool {
	if own, ok := errors.AsType[interface {
		error
		CanPass() bool
	}](err); ok {
		return own.CanPass()
	}
	if status := Status(err); status != nil {
		return PassingStatus(status.Code)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return !dns.IsNotFound
	}
	_, astray := errors.AsType[*RedirectError](err)
	return !astray && !errors.Is(err, context.Canceled) && !IsUntrusted(err)
}

// PassingStatus reports whether the same request may get another status later.
func PassingStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusInsufficientStorage:
		return false
	}
	return code >= http.StatusInternalServerError // including those of proxies such as Cloudflare, 520 to 527
}

// IsUntrusted reports whether TLS negotiation or trust failed.
func IsUntrusted(err error) bool {
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	return verify || unknown || host || invalid || record || IsPlainHTTP(err)
}

// IsPlainHTTP recognizes a server that speaks HTTP on a TLS port: the transport's error, and that of net/http's
// client, which has no type.
func IsPlainHTTP(err error) bool {
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return string(record.RecordHeader[:]) == "HTTP/"
	}
	return err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// A Backoff is the pause before further attempts: First, doubled with each failure, at most Longest.
type Backoff struct{ First, Longest time.Duration }

// Patience is the backoff of everything without one of its own.
func Patience() Backoff { return Backoff{500 * time.Millisecond, 30 * time.Second} }

// Pause returns the pause after a number of failures. Half of it is random, so that requests that failed together are
// not repeated together.
func (b Backoff) Pause(failures int) time.Duration {
	pause := b.First
	for i := 1; i < failures && pause < b.Longest; i++ {
		pause *= 2
	}
	pause = min(pause, b.Longest)
	return pause/2 + rand.N(pause/2+1) // no secret
}

// After returns the pause after the last failure, at least as long as its server asks for. The error is about one
// that asks for more than most.
func (b Backoff) After(failures int, err error, most time.Duration) (time.Duration, error) {
	pause := b.Pause(failures)
	if status := Status(err); status != nil {
		if status.After > most {
			return 0, fmt.Errorf("%w: the server demands a pause of %s", err, status.After.Round(time.Second))
		}
		pause = max(pause, status.After)
	}
	return pause, nil
}

// Sleep waits, or returns the cause of the context's end.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
