package registry

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
	"github.com/kkbundle/kkbundle/web/dial"
)

func push(t *testing.T, s *registrytest.Server, o PushOptions) (PushSummary, error) {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	o.Registry, o.Auth, o.Retries = s.Host, s.Keychain(), -1
	if o.Transport == nil {
		o.Transport = s.Transport()
	}
	return Push(t.Context(), b.Bundle().Reader, o)
}

// TestPushNeverFallsBackToHTTP: an upload that the registry sends to plain HTTP stays on HTTPS if it is the registry
// itself (a proxy that ends TLS before it), and is refused elsewhere.
func TestPushNeverFallsBackToHTTP(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	toHTTP := func(h http.Header) {
		if l := h.Get("Location"); strings.HasPrefix(l, "https:") {
			h.Set("Location", "http:"+strings.TrimPrefix(l, "https:"))
		}
	}
	if _, err := push(t, s, PushOptions{Transport: changed{s.Transport(), toHTTP}}); err != nil {
		t.Errorf("the registry's own address over http: %v", err)
	}
	s = registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	elsewhere := func(h http.Header) {
		if h.Get("Location") != "" {
			h.Set("Location", "http://127.0.0.9:1/upload")
		}
	}
	_, err := push(t, s, PushOptions{Transport: changed{s.Transport(), elsewhere}})
	if !errors.Is(err, errPlain) || !strings.Contains(err.Error(), "http://127.0.0.9:1") {
		t.Errorf("got %v, want a refusal that names the address", err)
	}
}

// TestPushSendsNoLoginElsewhere: uploads may go to another host, which gets no credentials.
func TestPushSendsNoLoginElsewhere(t *testing.T) {
	t.Parallel()
	for what, auth := range map[string]registrytest.Auth{
		"basic": registrytest.AuthBasic,
		"token": registrytest.AuthToken,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{Auth: auth})
			seen, sent := 0, false
			other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen++
				sent = sent || r.Header.Get("Authorization") != ""
				w.WriteHeader(http.StatusCreated)
			}))
			defer other.Close()
			elsewhere := func(h http.Header) {
				if l := h.Get("Location"); strings.Contains(l, "/uploads/") {
					u, _ := url.Parse(l)
					h.Set("Location", other.URL+u.RequestURI())
				}
			}
			_, err := push(t, s, PushOptions{PlainHTTP: true, Jobs: 1, Transport: changed{s.Transport(), elsewhere}})
			if err == nil { // the blobs never reached the registry
				t.Error("no error")
			}
			if seen != 4 || sent { // two blobs, and again because the registry lacks them
				t.Errorf("%d uploads went elsewhere, want 4; with credentials: %v", seen, sent)
			}
		})
	}
}

// changed changes answers' headers, as a proxy does.
type changed struct {
	http.RoundTripper
	change func(http.Header)
}

func (c changed) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		c.change(resp.Header)
	}
	return resp, err
}

func TestPushDetectsChangedTag(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{Faults: []registrytest.Fault{{
		Method: http.MethodHead, Path: regexp.MustCompile("manifests/1$"), Skip: 1,
		Effect: registrytest.Header("Docker-Content-Digest", zeros),
	}}})
	_, err := push(t, s, PushOptions{PlainHTTP: true})
	if errors.Is(err, ErrUnreachable) {
		t.Errorf("a registry that answers is called unreachable: %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "after the push") || !strings.Contains(err.Error(), zeros) {
		t.Errorf("got %v", err)
	}
}

func TestNewTransport(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true})
	rt, err := dial.NewTransport(dial.Files{CA: s.CAFile})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.CloseIdleConnections()
	if _, err := push(t, s, PushOptions{Transport: rt}); err != nil {
		t.Error(err)
	}
	if _, err := dial.NewTransport(dial.Files{CA: filepath.Join(t.TempDir(), "none")}); err == nil ||
		!strings.Contains(err.Error(), "CA file") {
		t.Errorf("no file: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dial.NewTransport(dial.Files{CA: empty}); err == nil || !strings.Contains(err.Error(), "PEM") {
		t.Errorf("no certificate: %v", err)
	}
}

func TestPushLoginIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthBasic})
	k := &countingKeychain{Keychain: s.Keychain()}
	b := bundletest.New(t)
	if _, err := Push(t.Context(), b.Reader, PushOptions{
		Registry: s.Host, Auth: k, PlainHTTP: true,
		Transport: s.Transport(),
	}); err != nil {
		t.Fatal(err)
	}
	if k.n != 1 {
		t.Errorf("the keychain was asked %d times", k.n)
	}
}

type countingKeychain struct {
	authn.Keychain
	n int
}

func (k *countingKeychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	k.n++
	return k.Keychain.Resolve(r)
}

// TestPushStallsAtFirst: a registry that takes connections and says nothing is given up before its first answer, too.
func TestPushStallsAtFirst(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	s.AddFaults(registrytest.Fault{Path: regexp.MustCompile("^/v2/$"), Times: -1, Effect: registrytest.Stall()})
	_, err := push(t, s, PushOptions{PlainHTTP: true, StallTimeout: 100 * time.Millisecond})
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "no data moved") {
		t.Errorf("got %v", err)
	}
}
