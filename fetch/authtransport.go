package fetch

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
)

const (
	pingPath  = "/v2/"
	realmPath = "/.kkbundle-token-service" // never sent: stands for a token service's address, see door
)

// A door stands between go-containerregistry's authentication and one registry.
//
//   - It asks how to log in once and repeats the answer, so that a login for each repository costs no request of its own.
//   - It stands in for the token service's address. The library refuses those on private networks, where companies have
//     theirs; here TLS protects the password, as guard sees to, and the answer of what is no token service is no token.
type door struct {
	next         http.RoundTripper
	host, scheme string // the registry's

	mu    sync.Mutex
	ping  *http.Response // nil until there is one
	realm *url.URL       // nil where no token is wanted
}

// RoundTrip implements http.RoundTripper.
func (d *door) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.URL.Host != d.host:
	case req.URL.Path == realmPath:
		return d.token(req)
	case req.URL.Path == pingPath && req.Method == http.MethodGet && req.Header.Get("Authorization") == "":
		return d.pinged(req)
	}
	return d.next.RoundTrip(req)
}

func (d *door) pinged(req *http.Request) (*http.Response, error) {
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
		d.hideRealm(resp.Header.Values("WWW-Authenticate"))
		resp.Body, resp.ContentLength = http.NoBody, 0
		d.ping = resp
	}
	again := *d.ping
	again.Header = d.ping.Header.Clone()
	return &again, nil
}

// hideRealm replaces the token service's address in challenges by one of the registry itself.
func (d *door) hideRealm(challenges []string) {
	for i, challenge := range challenges {
		scheme, _, _ := strings.Cut(challenge, " ")
		_, rest, ok := strings.Cut(challenge, `realm="`)
		address, _, closed := strings.Cut(rest, `"`)
		realm, err := url.Parse(address)
		if ok && closed && err == nil && realm.Host != "" && strings.EqualFold(scheme, "bearer") {
			d.realm = realm
			challenges[i] = strings.Replace(challenge, address, d.scheme+"://"+d.host+realmPath, 1)
		}
	}
}

// token asks the token service.
func (d *door) token(in *http.Request) (*http.Response, error) {
	d.mu.Lock()
	realm := *d.realm // the library knows the path only from a challenge that has one
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
		resp.Header.Set("Location", next.String()) // it is relative to the service, not to the registry
	}
	return resp, nil
}
