package fetch

import (
	"net/http"
	"net/url"
	"sync"

	"github.com/kkbundle/kkbundle/logins"
)

const (
	pingPath  = "/v2/"
	realmPath = "/.kkbundle-token-service" // never sent; stands for a token service's address, see authTransport
)

// An authTransport sits between go-containerregistry's authentication and one registry.
//
//   - It asks for the login method once and repeats the answer, so that logins for further repositories need no
//     request.
//   - It stands in for the token service's address. The library refuses token services on private networks, as
//     companies have them. Here TLS protects the password, see guard; an answer from something else contains no token.
type authTransport struct {
	next         http.RoundTripper
	host, scheme string // of the registry

	mu    sync.Mutex
	ping  *http.Response // nil before the first
	realm *url.URL       // nil if no token is needed
}

func (d *authTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.URL.Host != d.host:
	case req.URL.Path == realmPath:
		return d.token(req)
	case req.URL.Path == pingPath && req.Method == http.MethodGet && req.Header.Get("Authorization") == "":
		return d.pinged(req)
	}
	return d.next.RoundTrip(req)
}

func (d *authTransport) pinged(req *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ping == nil {
		resp, err := d.next.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		if err := resp.Body.Close(); err != nil {
			return nil, err
		}
		d.realm = logins.Settle(resp.Header, d.url(pingPath), d.url(realmPath))
		resp.Body, resp.ContentLength = http.NoBody, 0
		d.ping = resp
	}
	again := *d.ping
	again.Header = d.ping.Header.Clone()
	return &again, nil
}

func (d *authTransport) url(path string) *url.URL {
	return &url.URL{Scheme: d.scheme, Host: d.host, Path: path}
}

// token requests a token from the token service.
func (d *authTransport) token(in *http.Request) (*http.Response, error) {
	d.mu.Lock()
	realm := *d.realm // the library knows the path only from a challenge with a realm
	d.mu.Unlock()
	query := in.URL.Query()
	for key, values := range realm.Query() {
		if !query.Has(key) {
			query[key] = values
		}
	}
	to := realm
	to.RawQuery = query.Encode()
	req := in.Clone(in.Context())
	req.URL, req.Host = &to, to.Host
	resp, err := d.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if next, err := realm.Parse(resp.Header.Get("Location")); err == nil && resp.Header.Get("Location") != "" {
		resp.Header.Set("Location", next.String()) // relative to the service, not to the registry
	}
	return resp, nil
}
