package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

const (
	expectFrom  = 64 << 10 // bodies of at least this size wait for the registry's consent (Expect)
	tokensTried = 3        // attempts before "not authorized" is final: a token may expire between issue and use
	commitSpeed = 16 << 20 // bytes per second: the least storage speed granted to a slow registry
)

// A request to the registry. A status other than those in want is an error.
type request struct {
	method string
	url    string
	header http.Header
	size   int64
	body   func() (io.ReadCloser, error) // opens it from the start; nil for none
	want   []int
	// stay takes a refusal of another address, after a redirect, for that of an unknown address: GHCR leads from the
	// referrers API to a page for people, which limits requests.
	stay bool
}

// An answer holds the parts of a response in use; body has at most maxManifest bytes.
type answer struct {
	status int
	header http.Header
	url    *url.URL
	length int64
	body   []byte
}

// call sends one request, and repeats it with a new token if the registry rejected the first, or if only its refusal
// named the token service.
func (r *repo) call(ctx context.Context, q request) (answer, error) {
	for try := 1; ; try++ {
		a, err := r.callOnce(ctx, q)
		if te, ok := asRegistryError(err); !ok || te.StatusCode != http.StatusUnauthorized || try == tokensTried ||
			!r.usesTokens() {
			return a, err
		}
		r.forgetToken()
	}
}

// callOnce waits for its turn and sends one request. It gives up when nothing moves for too long.
func (r *repo) callOnce(ctx context.Context, q request) (answer, error) {
	round, err := r.throttle.start(ctx)
	if err != nil {
		return answer{}, err
	}
	a, err := r.attempt(ctx, q)
	r.throttle.end(round, err)
	return a, err
}

func (r *repo) attempt(ctx context.Context, q request) (answer, error) {
	client, err := r.open(ctx)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := newWatchdog(r.stall, func() { cancel(errStalled) })
	defer dog.stop()
	req, err := http.NewRequestWithContext(ctx, q.method, q.url, http.NoBody)
	if err != nil {
		return answer{}, fmt.Errorf("the registry returned an invalid address: %w", err)
	}
	maps.Copy(req.Header, q.header)
	src := &source{open: q.body, moved: dog.reset}
	if q.body != nil && q.size > 0 {
		req.Body, req.GetBody, req.ContentLength = unused{}, src.body, q.size
		if q.size >= expectFrom && !r.session.noExpect.Load() {
			req = r.expect(req, src)
		}
		src.done = func() { dog.grant(time.Duration(q.size/commitSpeed) * time.Second) }
	}
	a, err := r.receive(client, req, q)
	if te, ok := asRegistryError(err); ok && te.StatusCode == http.StatusExpectationFailed {
		r.session.noExpect.Store(true)
	}
	if stalled := context.Cause(ctx); errors.Is(stalled, errStalled) && err != nil {
		return a, errStalled
	}
	if broken := src.failure(); broken != nil && err != nil {
		return a, fmt.Errorf("read from the bundle: %w", broken)
	}
	return a, err
}

// expect lets a request wait for the registry's consent, so that a refusal arrives before gigabytes are sent. If the
// body is read without an answer, the transport has given up waiting, and later requests do not wait.
func (r *repo) expect(req *http.Request, body *source) *http.Request {
	req.Header.Set("Expect", "100-continue")
	var heard atomic.Bool
	moved := body.moved
	body.moved = func() {
		if !heard.Load() {
			r.session.noExpect.Store(true)
		}
		moved()
	}
	return req.WithContext(httptrace.WithClientTrace(req.Context(),
		&httptrace.ClientTrace{Got100Continue: func() { heard.Store(true) }}))
}

func (r *repo) receive(client *http.Client, req *http.Request, q request) (answer, error) {
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, web.WithoutLocation(err)
	}
	defer drain(resp)
	if resp.StatusCode == http.StatusUnauthorized && resp.Request.URL.Host == r.host {
		r.rt.Learn(resp)
	}
	if q.stay && resp.Request.URL.Path != req.URL.Path && resp.StatusCode >= http.StatusBadRequest {
		resp.StatusCode = http.StatusNotFound
	}
	a := answer{status: resp.StatusCode, header: resp.Header, url: resp.Request.URL, length: resp.ContentLength}
	if err := checkAnswer(resp, q.want...); err != nil {
		return a, err
	}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1)); err != nil {
		return a, &url.Error{Op: req.Method, URL: req.URL.Path, Err: err}
	}
	if len(a.body) > maxManifest {
		return a, fmt.Errorf("the registry's answer has more than %d bytes", maxManifest)
	}
	return a, nil
}

// unused is the body of requests whose bodies come from GetBody, see guard.
type unused struct{}

func (unused) Read([]byte) (int, error) { return 0, errors.New("body without GetBody") }
func (unused) Close() error             { return nil }

// A source opens a request's body for every attempt and records a read error, which net/http hides.
type source struct {
	open  func() (io.ReadCloser, error)
	moved func()
	done  func()

	mu  sync.Mutex
	err error
}

func (s *source) body() (io.ReadCloser, error) {
	rc, err := s.open()
	if err != nil {
		s.fail(err)
		return nil, err
	}
	return &sourceBody{blob: rc, source: s}, nil
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !errors.Is(err, context.Canceled) {
		s.err = err
	}
}

func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// A sourceBody is a request's body. If the answer comes early, net/http closes a body that it is still reading. Close
// then waits for the Read, which waits only for the disk, because the blob's memory is reused afterwards.
type sourceBody struct {
	mu     sync.Mutex
	blob   io.ReadCloser
	source *source
	closed bool
}

func (b *sourceBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, os.ErrClosed
	}
	n, err := b.blob.Read(p)
	if n > 0 {
		b.source.moved()
	}
	switch {
	case errors.Is(err, io.EOF):
		b.source.done()
	case err != nil:
		b.source.fail(err)
	}
	return n, err
}

func (b *sourceBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.blob.Close()
}

// A watchdog calls bark if nothing moves for its timeout.
type watchdog struct {
	limit time.Duration
	timer *time.Timer
}

func newWatchdog(limit time.Duration, bark func()) *watchdog {
	return &watchdog{limit: limit, timer: time.AfterFunc(limit, bark)}
}

func (w *watchdog) reset()                    { w.timer.Reset(w.limit) }
func (w *watchdog) grant(extra time.Duration) { w.timer.Reset(w.limit + extra) }
func (w *watchdog) stop()                     { w.timer.Stop() }
