package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/web"
)

const pingPath = "/v2/"

// errPlain answers a request that would leave the machine unencrypted without the user's consent.
var errPlain = errors.New("plain HTTP is not allowed")

// A guard sits between the login's round trip and the network.
//
//   - It decides the scheme. go-containerregistry would try plain HTTP by itself on private addresses, with the password.
//   - It gives every attempt its own body: the library repeats a request after a token has expired, with an already
//     consumed body.
type guard struct {
	inner http.RoundTripper
	host  string // of the registry
	plain bool
}

func (g guard) RoundTrip(in *http.Request) (*http.Response, error) {
	req := in.Clone(in.Context())
	if in.GetBody != nil {
		body, err := in.GetBody()
		if err != nil {
			return nil, err
		}
		req.Body = body
	}
	if req.Header.Get("User-Agent") == "" || strings.HasPrefix(req.Header.Get("User-Agent"), "go-containerregistry") {
		req.Header.Set("User-Agent", web.UserAgent)
	}
	if err := g.setScheme(req.URL); err != nil {
		return nil, err
	}
	resp, err := g.inner.RoundTrip(req)
	if err == nil && g.plain && leadsToTLS(resp) {
		_ = resp.Body.Close() // the error says more
		return nil, answerError(fmt.Sprintf("%s redirects to HTTPS: omit --plain-http", g.host))
	}
	return resp, err
}

// leadsToTLS reports whether a server on plain HTTP sends a request to itself in TLS, as web servers on port 80 do.
func leadsToTLS(resp *http.Response) bool {
	to, err := resp.Location()
	if err != nil || resp.StatusCode < http.StatusMultipleChoices || resp.StatusCode >= http.StatusBadRequest {
		return false
	}
	at := resp.Request.URL
	return to.Scheme == "https" && to.Hostname() == at.Hostname() && to.Path == at.Path
}

// setScheme enforces the user's scheme: the library tries both, and registries behind a proxy return addresses with the
// other one.
func (g guard) setScheme(u *url.URL) error {
	if u.Host == g.host {
		u.Scheme = "https"
		if g.plain {
			u.Scheme = "http"
		}
	}
	if u.Scheme != "https" && !g.plain {
		return fmt.Errorf("the registry refers to %s://%s: %w", u.Scheme, u.Host, errPlain)
	}
	return nil
}

// asRegistryError finds a registry's answer in an error.
func asRegistryError(err error) (*transport.Error, bool) {
	var te *transport.Error
	ok := errors.As(err, &te)
	return te, ok
}
