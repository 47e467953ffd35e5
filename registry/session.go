package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/dial"
	"github.com/kkbundle/kkbundle/web/logins"
)

// A session is the state shared by one Push: credentials, transport, and a client for each repository.
type session struct {
	registry  name.Registry
	host      string
	plain     bool         // the user's scheme is HTTP
	rt        *logins.Trip // over a guard
	auth      authn.Authenticator
	account   authn.AuthConfig // empty if anonymous
	stall     time.Duration
	retry     retrier
	logger    *slog.Logger
	unread    error       // the reason that a kept login could not be read
	greeted   atomic.Bool // /v2/ answered as that of a registry
	loggedIn  atomic.Bool // the token service took user and password: later refusals are about permissions
	throttle  *throttle
	chunk     atomic.Int64 // maximal bytes of a request, if the registry refused more; 0 is unlimited, without PATCH
	referrers referrersAPI
	harbor    *harborSite // nil if the registry is not Harbor, or HarborOptions are nil
	headless  atomic.Bool // a HEAD was answered with 404 for a manifest that GET has: only GET tells
	noExpect  atomic.Bool // the registry (or its proxy) does not support Expect: 100-continue

	mounts        atomic.Bool  // the registry has mounted a blob
	mountsRefused atomic.Int32 // times that it has not

	mu    sync.Mutex
	repos map[string]*repo
}

func newSession(ctx context.Context, t target, o PushOptions) (*session, error) {
	inner := o.Transport
	if inner == nil {
		t, err := dial.NewTransport(dial.Files{})
		if err != nil {
			return nil, err
		}
		inner = t
	}
	s := &session{
		registry: t.registry, host: t.registry.RegistryStr(), auth: authn.Anonymous, stall: o.StallTimeout,
		logger: o.Logger,
		retry:  retrier{again: o.Retries, logger: o.Logger}, repos: map[string]*repo{}, throttle: newThrottle(o.Jobs),
	}
	s.retry.words = func(err error) error { return s.explain("", err) }
	s.retry.alive = s.alive
	s.plain = o.PlainHTTP
	s.rt = logins.NewTrip(guard{inner: inner, host: s.host, plain: o.PlainHTTP}, s.scheme(), s.host)
	if o.PlainHTTP {
		insecure, err := name.NewRegistry(s.host, name.Insecure)
		if err != nil {
			return nil, fmt.Errorf("registry %q: %w", s.host, err)
		}
		s.registry = insecure
	}
	if o.Auth == nil {
		return s, nil
	}
	at := authn.Resource(s.registry)
	if t.prefix != "" {
		at = s.registry.Repo(t.prefix) // a login may be for a path within the registry
	}
	auth, err := authn.Resolve(ctx, o.Auth, at)
	if err != nil {
		return nil, fmt.Errorf("find the login for registry %s: %w", s.host, err)
	}
	config, err := authn.Authorization(ctx, auth)
	if err != nil {
		return nil, fmt.Errorf("find the login for registry %s: %w", s.host, err)
	}
	s.auth, s.account, s.unread = auth, *config, logins.Unread(auth)
	return s, nil
}

// login checks address and credentials of the registry, so that a wrong one is a single error instead of one per item.
// Push permission for a repository shows only with the first push.
func (s *session) login(ctx context.Context, first *repo) error {
	here := func(err error) bool { te, ok := asRegistryError(err); return ok && web.PassingStatus(te.StatusCode) }
	var a answer
	err := s.retry.do(ctx, "login", here, func() (err error) {
		a, err = first.callOnce(ctx, request{method: http.MethodGet, url: s.url(pingPath), want: []int{http.StatusOK}})
		return err
	})
	s.greeted.Store(err == nil)
	if err == nil && bytes.HasPrefix(bytes.TrimSpace(a.body), []byte("<")) { // the type tells nothing: Quay's is HTML
		return fmt.Errorf("%s is no registry: it answers %s with a web page (HTML): check the address; or a proxy or firewall before it wants a sign-in",
			s.host, pingPath)
	}
	return s.explain("", err)
}

// alive asks the registry for any answer. It is not the question that a Trip answers from memory.
func (s *session) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goodbye, errStalled)
	defer cancel()
	_, err := (&repo{session: s, client: &http.Client{Transport: s.rt, CheckRedirect: web.CheckRedirect}}).callOnce(ctx,
		request{method: http.MethodHead, url: s.url(pingPath), want: []int{http.StatusOK}})
	return err
}

func (s *session) url(path string) string { return s.scheme() + "://" + s.host + path }

func (s *session) scheme() string {
	if s.plain {
		return "http"
	}
	return "https"
}

// usesTokens reports whether the registry requires tokens instead of the login itself.
func (s *session) usesTokens() bool { return s.rt.Service() != nil }

// tokenService returns the host that issues tokens, for messages: the registry itself without a separate one.
func (s *session) tokenService() string {
	if service := s.rt.Service(); service != nil {
		return service.Host
	}
	return s.host
}

// repo returns the only repo of that name.
func (s *session) repo(name string) *repo {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[name]
	if r == nil {
		r = &repo{session: s, name: name}
		s.repos[name] = r
	}
	return r
}

// maxRefusedMounts is the number of refusals after which a registry that never mounted a blob is not asked again. A
// refusal may be about one pair of repositories.
const maxRefusedMounts = 4

// mayMount reports whether it is worth asking the registry to mount a blob.
func (s *session) mayMount() bool {
	return s.mounts.Load() || s.mountsRefused.Load() < maxRefusedMounts
}

// mountsUnknown reports whether the next answer about a mount decides if more are asked for.
func (s *session) mountsUnknown() bool { return !s.mounts.Load() && s.mayMount() }

// limitChunk bounds the size of blob requests for all uploads.
func (s *session) limitChunk(size int64) {
	for {
		have := s.chunk.Load()
		if have != 0 && have <= size || s.chunk.CompareAndSwap(have, size) {
			return
		}
	}
}

// A repo is one repository at the destination. Its methods may be called concurrently.
type repo struct {
	*session
	name      string
	mountFrom []string // repositories that blobs may be mounted from; set before the first request

	opening sync.Mutex
	client  *http.Client

	holding sync.Mutex
	held    map[digest.Digest]bool // blobs certainly present

	opened atomic.Bool // an upload: the user may push
}

// maxScopes bounds the scopes of one token: some token services put them into a header, whose length proxies limit.
const maxScopes = 16

// open returns a client with the registry's authentication. For a token service that is one token for this repository,
// renewed when the registry rejects it.
func (r *repo) open(ctx context.Context) (*http.Client, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	scopes := []string{r.scope(r.name, transport.PushScope)}
	for _, from := range r.mountFrom[:min(len(r.mountFrom), maxScopes)] {
		scopes = append(scopes, r.scope(from, transport.PullScope))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.stall, errStalled) // requests and answers are short
	defer cancel()
	rt, err := transport.NewWithContext(ctx, r.registry, r.auth, r.rt, scopes)
	if errors.Is(context.Cause(ctx), errStalled) && err != nil {
		return nil, errStalled
	}
	if err != nil {
		return nil, err
	}
	if r.usesTokens() {
		r.loggedIn.Store(true)
	}
	r.client = &http.Client{Transport: rt, CheckRedirect: web.CheckRedirect}
	return r.client, nil
}

// mayPull makes sure that requests may read from another repository, which requires a new token unless the present one
// covers it.
func (r *repo) mayPull(from string) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if i := slices.Index(r.mountFrom, from); r.usesTokens() && (i < 0 || i >= maxScopes) {
		r.mountFrom = append([]string{from}, r.mountFrom...)
		r.client = nil
	}
}

func (r *repo) forgetToken() {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.client = nil
}

func (*repo) scope(repository, action string) string {
	return "repository:" + repository + ":" + action
}

// checkAnswer turns every unwanted status into a *web.StatusError around a *transport.Error. The body stays open.
func checkAnswer(resp *http.Response, wanted ...int) error {
	err := transport.CheckError(resp, wanted...)
	if err == nil {
		return nil
	}
	status := web.NewStatusError(resp)
	status.Err = err
	return status
}

// drain reads a little of the rest, so that the connection can be reused, and closes.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxErrorBody)
	_ = resp.Body.Close() // the rest is unused
}
