package registries

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/logins"
	"github.com/kkbundle/kkbundle/web/proxy"
)

// An endpoint is a repository on one of its servers. It logs in at the first request, because items in the store need
// no registry.
type endpoint struct {
	sender   *upstream.Sender
	keychain authn.Keychain
	peer     *upstream.Peer
	auth     *logins.Trip
	name     name.Repository // name on the registry in use
	scope    string          // of its tokens

	mu     sync.Mutex
	known  bool  // credentials were found
	unread error // the reason that kept credentials could not be read
	client *http.Client
	denied error // the error of a refused login, which is not repeated
}

func (g *Registries) newEndpoint(p *upstream.Peer, home name.Repository) (*endpoint, error) {
	var options []name.Option
	if p.Plain {
		options = append(options, name.Insecure)
	}
	host, err := name.NewRegistry(p.Host, options...)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", p, err)
	}
	named := host.Repo(path.Join(p.Prefix, home.RepositoryStr()))
	return &endpoint{
		sender: g.loader.Sender, keychain: g.keychain, peer: p, auth: p.LoginTrip(host.RegistryStr()), name: named,
		scope: named.Scope(transport.PullScope),
	}, nil
}

// login returns the logged-in client.
func (e *endpoint) login(ctx context.Context) (*http.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil || e.denied != nil {
		return e.client, e.denied
	}
	auth, err := authn.Resolve(ctx, e.keychain, e.name)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", e.peer.Host, err)
	}
	e.unread = logins.Unread(auth)
	e.known = auth != authn.Anonymous && e.unread == nil
	var trip http.RoundTripper
	err = e.sender.Retry(ctx, e.peer, "log in to "+e.peer.Host, func() error {
		trip, err = e.handshake(ctx, auth)
		return err
	})
	if upstream.AnsweredWith(err, http.StatusUnauthorized, http.StatusForbidden) {
		e.denied = e.explain(err)
		return nil, e.denied
	}
	if err != nil {
		return nil, e.explain(err)
	}
	e.client = e.peer.Client(&lateLogin{endpoint: e, auth: auth, trip: trip, bare: e.auth.Service() == nil})
	return e.client, nil
}

// handshake asks the registry for the login method, and logs in.
func (e *endpoint) handshake(ctx context.Context, auth authn.Authenticator) (http.RoundTripper, error) {
	var trip http.RoundTripper
	err := e.sender.Brief(ctx, e.peer, func(ctx context.Context) (err error) {
		trip, err = e.trip(ctx, auth)
		return err
	})
	return trip, err
}

func (e *endpoint) trip(ctx context.Context, auth authn.Authenticator) (http.RoundTripper, error) {
	return transport.NewWithContext(ctx, e.name.Registry, auth, shyPing{e.auth}, []string{e.scope})
}

// ask sends one small request.
func (e *endpoint) ask(ctx context.Context, method string, u *url.URL, accept string,
	limit int64,
) ([]byte, http.Header, error) {
	client, err := e.login(ctx)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	return e.send(ctx, client, req, accept, limit)
}

func (e *endpoint) send(ctx context.Context, client *http.Client, req *http.Request, accept string,
	limit int64,
) ([]byte, http.Header, error) {
	req.Header.Set("Accept", accept)
	data, header, err := e.sender.Small(ctx, e.peer, client, req, limit)
	if err != nil {
		return nil, nil, e.explain(err)
	}
	return data, header, nil
}

// at returns the endpoint's URL for a URL of the upstream repository.
func (e *endpoint) at(u *url.URL) *url.URL {
	to := *u
	to.Scheme, to.Host = e.peer.Scheme(), e.name.RegistryStr()
	if e.peer.Prefix != "" {
		to.Path = path.Join("/v2", e.peer.Prefix, strings.TrimPrefix(u.Path, "/v2"))
	}
	return &to
}

// String names the repository in use.
func (e *endpoint) String() string { return e.peer.Host + "/" + e.name.RepositoryStr() }

// explain turns a registry's answer into an error with cause and remedy.
func (e *endpoint) explain(err error) error {
	status := web.Status(err)
	if status == nil {
		return fmt.Errorf("ask %s: %w", e.peer, err)
	}
	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		if status.By != "" { // the object store of the registry
			return fmt.Errorf("ask %s: %w: if a firewall or proxy stops it, allow %s, too", e.peer, err, status.By)
		}
		return e.explainDenied(err)
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("%s: %w", proxy.LoginText(e.peer.Host), err)
	case http.StatusNotFound:
		what := "no such tag, digest or repository"
		switch {
		case strings.Contains(status.Detail, string(transport.NameUnknownErrorCode)):
			what = "no such repository"
		case strings.Contains(status.Detail, string(transport.ManifestUnknownErrorCode)):
			what = "no such tag or digest"
		case strings.Contains(status.Detail, string(transport.BlobUnknownErrorCode)):
			what = "the registry has lost this blob"
		}
		if !e.peer.IsMirror() { // callers name the item, whose reference has the registry and the repository
			return &namelessError{what + ": " + status.Line(), err}
		}
		return fmt.Errorf("%s: %s in %s: %w", e.peer, what, e, err)
	}
	return fmt.Errorf("ask %s: %w", e.peer, err)
}

// A namelessError has a text without the names in its cause, which an item's reference has.
type namelessError struct {
	text  string
	cause error
}

func (e *namelessError) Error() string { return e.text }
func (e *namelessError) Unwrap() error { return e.cause }

func (e *endpoint) explainDenied(err error) error {
	login := fmt.Sprintf("kkbundle login %s (or an entry for it in the config.json of $DOCKER_CONFIG, ~/.docker by default)", e.peer.Host)
	if e.known {
		return fmt.Errorf("%s: registry %s rejects the configured credentials for %s: check them with %s: %w", e.peer,
			e.peer.Host, e.name.RepositoryStr(), login, err)
	}
	if e.unread != nil {
		return fmt.Errorf("%s: registry %s requires credentials for %s, and %w: %w", e.peer, e.peer.Host,
			e.name.RepositoryStr(), e.unread, err)
	}
	return fmt.Errorf("%s: registry %s requires credentials for %s, or the repository does not exist: %s: %w", e.peer,
		e.peer.Host, e.name.RepositoryStr(), login, err)
}

// pages reads a list of names, which a registry sends in pages.
func (e *endpoint) pages(ctx context.Context, u *url.URL, key string) ([]string, error) {
	var all []string
	u = e.at(u)
	u.RawQuery = "n=1000"
	left := int64(maxTags)
	for range maxTagPages {
		data, header, err := e.ask(ctx, http.MethodGet, u, "application/json", left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(data))
		var page map[string]json.RawMessage
		var names []string
		err = json.Unmarshal(data, &page)
		if err == nil && page[key] != nil {
			err = json.Unmarshal(page[key], &names)
		}
		if err != nil && content.IsHTML(data) {
			return nil, fmt.Errorf("%s sends a web page (HTML) in place of a list of %s: %w", e, key, errPage)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, e, err)
		}
		all = append(all, names...)
		to, err := nextURL(u, header)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, e, err)
		}
		if to == nil {
			return all, nil
		}
		u = to
	}
	return nil, fmt.Errorf("%s of %s: more than %d pages", key, e, maxTagPages)
}
