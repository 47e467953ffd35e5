package upstream

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

// Retry configures the number and timing of attempts. Each zero field has the default in its comment.
type Retry struct {
	Attempts      int           // consecutive requests without a new byte before giving up; 6
	Wait          time.Duration // before the second attempt, doubled for each further one, half of it random; 500 ms
	MaxWait       time.Duration // upper bound of the doubling; 30 s
	MaxRetryAfter time.Duration // the longest accepted Retry-After; a server that asks for more is an error; 5 min
	Idle          time.Duration // how long a server may send nothing before the connection is closed; 60 s
}

// WithDefaults returns r with the defaults of the fields that are not set.
func (r Retry) WithDefaults() Retry {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	if r.Attempts <= 0 {
		r.Attempts = 6
	}
	set(&r.Wait, web.Patience().First)
	set(&r.MaxWait, web.Patience().Longest)
	set(&r.MaxRetryAfter, web.MaxRetryAfter)
	set(&r.Idle, web.Idle)
	return r
}

func (r Retry) backoff() web.Backoff { return web.Backoff{First: r.Wait, Longest: r.MaxWait} }

// newStatusError reads a little of the answer. The caller closes it.
func newStatusError(resp *http.Response) *web.StatusError {
	status := web.NewStatusError(resp)
	status.Detail = diagnostics(transport.CheckError(resp))
	return status
}

// diagnostics returns a registry's error codes and messages, or nothing: pages for people are useless in a log.
func diagnostics(err error) string {
	var terr *transport.Error
	if !errors.As(err, &terr) {
		return ""
	}
	var parts []string
	for _, d := range terr.Errors {
		text := string(d.Code)
		if d.Message != "" {
			text += ": " + d.Message
		}
		parts = append(parts, Printable(text))
	}
	return Printable(strings.Join(parts, "; "))
}

// Printable makes a server's text safe and short enough for one line.
func Printable(s string) string {
	const most = 300
	return plain.Clip(strings.TrimSpace(plain.Line(s)), most)
}

// A StoreError is a failure of the Store: another server or attempt cannot help.
type StoreError struct{ Cause error }

func (e *StoreError) Error() string {
	var own interface{ FullDisk() string }
	if errors.As(e.Cause, &own) {
		return own.FullDisk() // the store knows its disk
	}
	if errors.Is(e.Cause, syscall.ENOSPC) || errors.Is(e.Cause, syscall.EDQUOT) {
		return "the disk of the cache is full: make room or choose another directory with --cache, and run again; downloaded data is kept: " + e.Cause.Error()
	}
	return "cache: " + e.Cause.Error()
}

func (e *StoreError) Unwrap() error { return e.Cause }

// A permanentError is one that a retry cannot cure.
type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

func permanent(format string, args ...any) error { return &permanentError{fmt.Errorf(format, args...)} }

// retryable reports whether the same request may succeed a little later.
func retryable(err error) bool {
	_, final := errors.AsType[*permanentError](err)
	_, store := errors.AsType[*StoreError](err)
	return !final && !store && !errors.Is(err, errPlainHTTP) && web.Passing(err)
}

// A LieError is a server's self-contradictory answer, which it would give again.
type LieError struct{ Err error }

func (e *LieError) Error() string { return e.Err.Error() }

func (e *LieError) Unwrap() error { return e.Err }

// IsLie reports whether an error is, or wraps, a LieError.
func IsLie(err error) bool {
	_, lie := errors.AsType[*LieError](err)
	return lie
}

// requestError explains why a request got no answer, without the URL: callers name the file, and after a redirect the
// URL may have a signature in it. A refusal of the token service is a *web.StatusError.
func requestError(err error) error {
	var wrapped *url.Error
	for errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var terr *transport.Error
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var gone *UnreachableError
	switch {
	case errors.As(err, &gone):
		return gone // already explained
	case errors.As(err, &terr):
		return &web.StatusError{Code: terr.StatusCode, Detail: diagnostics(terr)}
	case strings.HasPrefix(err.Error(), "no token in bearer response"):
		return errors.New("the token service's answer has no token") // and the rest of the answer may be secret
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: if this is your own authority, name its file under sources (ca)", printableError{err})
	case web.IsPlainHTTP(err), errors.As(err, &record):
		return fmt.Errorf("%w: if that is intended, name the host under sources with plainHTTP: true",
			printableError{err})
	}
	return printableError{err}
}

// A printableError is an error whose text may contain a server's own text.
type printableError struct{ err error }

func (e printableError) Error() string { return Printable(e.err.Error()) }
func (e printableError) Unwrap() error { return e.err }

// fewAttempts is the number of attempts for hopeless cases: a host that never answered in this run, or a mirror with an
// alternative.
const fewAttempts = 3

// attempts counts consecutive requests without progress.
type attempts struct {
	sender *Sender
	peer   *Peer
	what   string // for the log
	n      int
	began  time.Time // time of the first failure
	probe  *probe    // others wait for this request's outcome; nil if none do
}

// progress records that bytes arrived.
func (a *attempts) progress() { a.n, a.began = 0, time.Time{} }

// limit returns how many attempts an error is worth.
func (a *attempts) limit(err error) int {
	if a.peer.server.breaker.isOpen() {
		return 1
	}
	var gone *UnreachableError
	if a.peer.Spare || errors.As(err, &gone) && a.peer.server.silent() {
		return min(fewAttempts, a.sender.Limits.Attempts)
	}
	return a.sender.Limits.Attempts
}

// again waits before another attempt, or returns the error that ends the attempts. The end of the attempts must be
// reported by end.
func (a *attempts) again(ctx context.Context, err error) error {
	a.end()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if !retryable(err) {
		a.lost(err)
		return err
	}
	if a.n == 0 {
		a.began = time.Now()
	}
	for {
		a.n = a.peer.server.breaker.next(a.n)
		if a.n >= a.limit(err) {
			a.lost(err)
			a.peer.server.breaker.usedUp(a.began)
			return fmt.Errorf("%w (tried %d times)", err, a.n)
		}
		if err := a.pause(ctx, err); err != nil {
			return err
		}
		mine, ok, err := a.peer.server.breaker.turn(ctx, a.began, a.n)
		if err != nil {
			return err
		}
		if ok {
			a.probe = mine
			return nil
		}
	}
}

// pause waits as long as the host asks for, or longer with every attempt.
func (a *attempts) pause(ctx context.Context, err error) error {
	r := a.sender.Limits
	wait, final := r.backoff().After(a.n, err, r.MaxRetryAfter)
	if final != nil {
		return final
	}
	if status := web.Status(err); status != nil && (status.After > 0 || status.Code == http.StatusTooManyRequests) {
		a.peer.server.gate.hold(wait)
	}
	a.tell(ctx, err, wait)
	return web.Sleep(ctx, wait)
}

// end reports that the last request is over. If others wait for its outcome, it had no proper answer.
func (a *attempts) end() {
	a.peer.server.breaker.fail(a.probe)
	a.probe = nil
}

// lost records a host that was never reachable, so that later requests need not wait for it.
func (a *attempts) lost(err error) {
	if gone, ok := errors.AsType[*UnreachableError](err); ok && gone.host == a.peer.Host && a.peer.server.silent() {
		a.peer.server.giveUp(err)
	}
}

// tell logs every attempt at debug level, and occasionally a line if the trouble lasts.
func (a *attempts) tell(ctx context.Context, err error, wait time.Duration) {
	a.sender.Log.DebugContext(ctx, "trying again", "what", a.what, "attempt", a.n+1, "wait", wait, "error", err)
	if a.peer.server.mayTell(a.began, time.Now().Add(wait)) {
		a.sender.Log.WarnContext(ctx, "a host does not answer properly, still trying", "host", a.peer.Host, "since",
			time.Since(a.began).Round(time.Second),
			"next", wait.Round(time.Second), "error", err)
	}
}

// judge informs the gate about an answer; nil is a good one.
func (p *pass) judge(status *web.StatusError) {
	switch {
	case status == nil || status.Code < http.StatusBadRequest || status.Code == http.StatusNotFound:
		p.fine()
	case status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable:
		p.crowded()
	}
}

// A Sender sends requests, waits between attempts and tries the places of some content in their order.
type Sender struct {
	Limits Retry
	Log    *slog.Logger
}

// Retry runs f until it succeeds or further attempts are pointless.
func (s *Sender) Retry(ctx context.Context, p *Peer, what string, f func() error) error {
	a := attempts{sender: s, peer: p, what: what}
	defer a.end()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// Send sends the request once. It and reads of the answer's body fail with a *web.StallError if the server sends
// nothing for Retry.Idle. The body must be closed.
func (s *Sender) Send(ctx context.Context, p *Peer, c *http.Client, req *http.Request) (*http.Response, error) {
	if err := p.server.given(); err != nil {
		return nil, err
	}
	pass, err := p.server.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := web.Send(c, req.WithContext(ctx), s.Limits.Idle)
	if err != nil {
		err = requestError(err)
		if status := web.Status(err); status != nil {
			pass.judge(status)
		}
		pass.leave()
		return nil, err
	}
	pass.judge(&web.StatusError{Code: resp.StatusCode})
	resp.Body = &gatedBody{resp.Body, sync.OnceFunc(pass.leave)}
	return resp, nil
}

// Brief has ask send a peer a request with a short answer, by means of its own. It fails like send.
func (s *Sender) Brief(ctx context.Context, p *Peer, ask func(context.Context) error) error {
	if err := p.server.given(); err != nil {
		return err
	}
	idle := s.Limits.Idle
	ctx, cancel := context.WithTimeoutCause(ctx, idle, &web.StallError{Idle: idle})
	defer cancel()
	pass, err := p.server.gate.enter(ctx)
	if err != nil {
		return err
	}
	defer pass.leave()
	err = ask(ctx)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = requestError(err)
		pass.judge(web.Status(err))
	}
	return err
}

// A gatedBody is an answer's body that counts as a request until it is closed.
type gatedBody struct {
	io.ReadCloser
	leave func()
}

func (b *gatedBody) Close() error {
	defer b.leave()
	return b.ReadCloser.Close()
}

// Small reads a whole answer of at most limit bytes, with retries. A status other than 200 is a *web.StatusError.
func (s *Sender) Small(ctx context.Context, p *Peer, c *http.Client, req *http.Request,
	limit int64,
) (data []byte, header http.Header, err error) {
	err = s.Retry(ctx, p, req.URL.Redacted(), func() error {
		data, header, err = s.Ask(ctx, p, c, req, limit)
		return err
	})
	return data, header, err
}

// Ask is Small without retries.
func (s *Sender) Ask(ctx context.Context, p *Peer, c *http.Client, req *http.Request,
	limit int64,
) (data []byte, header http.Header, err error) {
	resp, err := s.Send(ctx, p, c, req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, newStatusError(resp)
	}
	if req.Method == http.MethodHead {
		return nil, resp.Header, nil
	}
	data, err = readPage(resp, limit)
	return data, resp.Header, err
}

// readPage reads a whole answer of at most limit bytes. Some servers send compressed pages even if not asked to.
func readPage(resp *http.Response, limit int64) ([]byte, error) {
	body := io.Reader(resp.Body)
	switch encoding := contentEncoding(resp.Header); encoding {
	case "":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("the answer is not valid gzip: %w", err)
		}
		body = unpacked
	default:
		return nil, permanent("the server uses the unrequested encoding %s", Printable(encoding))
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, permanent("the answer has more than %d bytes", limit)
	}
	if err != nil {
		return nil, requestError(err)
	}
	return data, nil
}

// contentEncoding returns the encoding of an answer's body (RFC 9110, 8.4), "" for none.
func contentEncoding(h http.Header) string {
	switch encoding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding"))); encoding {
	case "identity", "aws-chunked": // Amazon's S3 keeps aws-chunked from uploads; the content is not encoded
		return ""
	case "x-gzip":
		return "gzip"
	default:
		return encoding
	}
}
