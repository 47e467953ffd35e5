package registries

import (
	"net/http"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/web"
)

// A shyPing lets go-containerregistry log in at a registry that refuses the question for the login method, or does not
// know its address: such a registry names the method when it refuses something else.
type shyPing struct{ next http.RoundTripper }

// RoundTrip sends a request. /v2/ counts as open to everybody unless it wants a login or will answer later.
func (s shyPing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err != nil || req.URL.Path != "/v2/" || resp.StatusCode == http.StatusUnauthorized ||
		web.PassingStatus(resp.StatusCode) || isRedirect(resp) {
		return resp, err
	}
	resp.StatusCode, resp.Status = http.StatusOK, "200 OK"
	return resp, nil
}

func isRedirect(resp *http.Response) bool {
	return resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.Header.Get("Location") != ""
}

// A lateLogin sends the requests for one repository. It logs in when the registry first refuses one, if the registry
// did not name its token service before.
type lateLogin struct {
	endpoint *endpoint
	auth     authn.Authenticator

	mu   sync.Mutex
	trip http.RoundTripper
	bare bool // trip knows no token service
}

// RoundTrip sends a request, and once more with a token that it lacked.
func (l *lateLogin) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	trip, bare := l.trip, l.bare
	l.mu.Unlock()
	resp, err := trip.RoundTrip(req)
	if err != nil || !bare || resp.StatusCode != http.StatusUnauthorized ||
		req.URL.Host != l.endpoint.name.RegistryStr() || !l.endpoint.auth.Learn(resp) {
		return resp, err
	}
	err = resp.Body.Close()
	if err == nil {
		trip, err = l.renewed(req)
	}
	if err != nil {
		return nil, err
	}
	again := req.Clone(req.Context())
	again.Header.Del("Authorization")
	return trip.RoundTrip(again)
}

// renewed returns the connections with a token.
func (l *lateLogin) renewed(req *http.Request) (http.RoundTripper, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bare {
		return l.trip, nil
	}
	trip, err := l.endpoint.trip(req.Context(), l.auth)
	if err != nil {
		return nil, err
	}
	l.trip, l.bare = trip, false
	return trip, nil
}
