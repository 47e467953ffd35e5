package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/logins"
)

const (
	pingPath  = "/v2/"
	realmPath = "/.kkbundle-token-service" // never sent; stands for a token service's address, see authTransport
)

// errPlain answers a request that would leave the machine unencrypted without the user's consent.
var errPlain = errors.New("plain HTTP is not allowed")

// An authTransport sits between go-containerregistry's authentication and the network.
//
//   - It decides the scheme. The library would try plain HTTP by itself on private addresses, with the password.
//   - It asks the registry for its challenge once and repeats the answer, so a client for each repository costs no
//     request.
//   - It stands in for the token service's address: the library refuses those on private networks, where sites have
//     theirs.
//   - It gives every attempt its own body: the library repeats a request after a token has expired, with an already
//     consumed body.
type authTransport struct {
	inner http.RoundTripper
	host  string // of the registry
	plain bool

	mu    sync.Mutex
	ping  *http.Response // the challenge, without body
	body  []byte
	realm *url.URL
	token bool
}

func (g *authTransport) RoundTrip(in *http.Request) (*http.Response, error) {
	req := in.Clone(in.Context())
	if in.GetBody != nil {
		body, err := in.GetBody()
		if err != nil {
			return nil, err
		}
		req.Body = body
	}
	if req.Header.Get("User-Agent") == "" || strings.HasPrefix(req.Header.Get("User-Agent"), "go-containerregistry") {
		req.Header.Set("User-Agent", "kkbundle")
	}
	if g.isRealm(req.URL) {
		g.toRealm(req)
	}
	if err := g.setScheme(req.URL); err != nil {
		return nil, err
	}
	if req.Method == http.MethodGet && req.URL.Host == g.host && req.URL.Path == pingPath && req.Header.Get("Authorization") == "" {
		return g.pinged(req)
	}
	return g.inner.RoundTrip(req)
}

// setScheme enforces the user's scheme: the library tries both, and registries behind a proxy return addresses with the
// other one.
func (g *authTransport) setScheme(u *url.URL) error {
	if u.Host == g.host {
		u.Scheme = g.scheme()
	}
	if u.Scheme != "https" && !g.plain {
		return fmt.Errorf("the registry refers to %s://%s: %w", u.Scheme, u.Host, errPlain)
	}
	return nil
}

func (g *authTransport) scheme() string {
	if g.plain {
		return "http"
	}
	return "https"
}

// pinged asks the registry for its challenge, once.
func (g *authTransport) pinged(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ping == nil {
		resp, err := g.inner.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusUnauthorized {
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return resp, nil // not a challenge
		}
		g.realm = logins.Settle(resp.Header, g.url(pingPath), g.url(realmPath))
		g.token = g.realm != nil
		g.ping, g.body = resp, body
	}
	resp := *g.ping
	resp.Header, resp.Request, resp.Body = g.ping.Header.Clone(), req, io.NopCloser(bytes.NewReader(g.body))
	return &resp, nil
}

func (g *authTransport) url(path string) *url.URL {
	return &url.URL{Scheme: g.scheme(), Host: g.host, Path: path}
}

func (g *authTransport) isRealm(u *url.URL) bool { return u.Host == g.host && u.Path == realmPath }

func (g *authTransport) toRealm(req *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.realm == nil {
		return
	}
	query := req.URL.Query()
	for k, v := range g.realm.Query() {
		if !query.Has(k) {
			query[k] = v
		}
	}
	to := *g.realm
	to.RawQuery = query.Encode()
	req.URL, req.Host = &to, to.Host
}

// usesTokens reports whether the registry requires tokens instead of the login itself.
func (g *authTransport) usesTokens() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token
}

// tokenService returns the host that issues tokens, for messages: the registry itself without a separate one.
func (g *authTransport) tokenService() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.realm != nil {
		return g.realm.Host
	}
	return g.host
}

// asRegistryError finds a registry's answer in an error.
func asRegistryError(err error) (*transport.Error, bool) {
	var te *transport.Error
	ok := errors.As(err, &te)
	return te, ok
}
