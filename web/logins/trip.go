package logins

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

const (
	pingPath  = "/v2/"
	realmPath = "/.kkbundle-token-service" // never sent; stands for a token service's address, see Trip
	maxWords  = 64 << 10                   // bytes of the registry's words to a request without a login
)

// A Trip sits between go-containerregistry's authentication and one registry.
//
//   - It asks for the login method once and repeats the answer, so that logins for further repositories need no request.
//   - It stands in for the token service's address. The library refuses token services on private networks, where companies have theirs.
//     The transport below protects the password: it refuses plain HTTP without the user's consent.
type Trip struct {
	next http.RoundTripper
	root *url.URL // of the registry

	mu    sync.Mutex
	ping  *http.Response // without body; nil before the first
	body  []byte
	realm *url.URL // nil if no token is needed
}

// NewTrip returns the Trip to a registry at scheme and host[:port], over a transport.
func NewTrip(next http.RoundTripper, scheme, host string) *Trip {
	return &Trip{next: next, root: &url.URL{Scheme: scheme, Host: host}}
}

// RoundTrip sends a request, or answers the question for the login method.
func (t *Trip) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.URL.Host != t.root.Host:
	case req.URL.Path == realmPath:
		return t.token(req)
	case req.URL.Path == pingPath && req.Method == http.MethodGet && req.Header.Get("Authorization") == "":
		return t.pinged(req)
	}
	return t.next.RoundTrip(req)
}

func (t *Trip) pinged(req *http.Request) (*http.Response, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ping == nil {
		resp, err := t.next.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusUnauthorized {
			return resp, err // no challenge
		}
		defer resp.Body.Close()
		if t.body, err = io.ReadAll(io.LimitReader(resp.Body, maxWords)); err != nil {
			return nil, err
		}
		t.realm = Settle(resp.Header, t.root.JoinPath(pingPath), t.root.JoinPath(realmPath))
		t.ping = resp
	}
	again := *t.ping
	again.Header = t.ping.Header.Clone() // and its Request, whose scheme is the one in use
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(t.body)), int64(len(t.body))
	return &again, nil
}

// token requests a token from the token service.
func (t *Trip) token(in *http.Request) (*http.Response, error) {
	to := *t.Service() // the library knows the path only from a challenge with a realm
	query := in.URL.Query()
	for key, values := range to.Query() {
		if !query.Has(key) {
			query[key] = values
		}
	}
	to.RawQuery = query.Encode()
	req := in.Clone(in.Context())
	req.URL, req.Host = &to, to.Host
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if next, err := to.Parse(resp.Header.Get("Location")); err == nil && resp.Header.Get("Location") != "" {
		resp.Header.Set("Location", next.String()) // relative to the service, not to the registry
	}
	switch {
	case resp.StatusCode == http.StatusOK:
		err = settleToken(resp, &to)
	case resp.StatusCode == http.StatusNotFound && req.Method == http.MethodGet: // a POST may be answered so
		err = errors.Join(missing(&to), resp.Body.Close())
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Learn takes the token service that a registry names when it refuses a request, if it named none before: some let
// everybody see /v2/, or take a password there, and ask for a token only behind it. It reports whether the registry is
// known to have a token service.
func (t *Trip) Learn(refusal *http.Response) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.realm != nil {
		return true
	}
	ping := &http.Response{
		Status: refusal.Status, StatusCode: refusal.StatusCode, Proto: refusal.Proto, Request: refusal.Request,
		Header: http.Header{authenticate: slices.Clone(refusal.Header.Values(authenticate))},
	}
	realm := Settle(ping.Header, t.root.JoinPath(pingPath), t.root.JoinPath(realmPath))
	if realm == nil || t.tookPassword() && realm.Hostname() != t.root.Hostname() {
		return false
	}
	t.realm = realm
	t.ping, t.body = ping, nil
	return true
}

// tookPassword reports whether the registry itself asked for the password. It does not go to a service elsewhere then,
// which a cache may only pass on from its own upstream.
func (t *Trip) tookPassword() bool {
	return t.ping != nil && t.ping.StatusCode == http.StatusUnauthorized
}

// Service returns the address that issues tokens, nil if the registry takes the login itself or was not asked yet.
func (t *Trip) Service() *url.URL {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.realm
}
