package registry_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// unless answers like effect, but not requests with a token.
func unlessToken(effect registrytest.Effect) registrytest.Effect {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
				next.ServeHTTP(w, r)
				return
			}
			effect(next).ServeHTTP(w, r)
		})
	}
}

// TestPushLateChallenge: a registry may let everybody see /v2/ (or ask for a password there), and name its token
// service only where it refuses something.
func TestPushLateChallenge(t *testing.T) {
	t.Parallel()
	ping := regexp.MustCompile("^/v2/$")
	basic := registrytest.Effect(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		})
	})
	for what, faults := range map[string][]registrytest.Fault{
		"everywhere else":  {{Path: ping, Times: -1, Effect: registrytest.Fail(200, "")}},
		"password at /v2/": {{Path: ping, Times: -1, Effect: basic}},
		"first at an upload": {
			{Path: ping, Times: -1, Effect: registrytest.Fail(200, "")},
			{Method: "HEAD", Times: -1, Effect: unlessToken(registrytest.Fail(404, ""))},
			{Method: "GET", Path: regexp.MustCompile("/manifests/"), Times: -1, Effect: unlessToken(registrytest.Fail(404, ""))},
		},
		"first at the content": {
			{Path: ping, Times: -1, Effect: registrytest.Fail(200, "")},
			{Method: "HEAD", Times: -1, Effect: unlessToken(registrytest.Fail(404, ""))},
			{Method: "POST", Times: 1, Effect: unlessToken(func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Location", r.URL.Path+"0f0f0f0f-0000-4000-8000-000000000000?_state=x")
					w.WriteHeader(http.StatusAccepted)
				})
			})},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthToken}), bundletest.New(t)
			s.AddFaults(faults...)
			sum := push(t, b, options(s))
			s.ClearFaults()
			checkPulled(t, s, b, sum)
			o := options(s)
			s.AddFaults(faults...)
			o.Auth = fixed{Username: "pusher", Password: "wrong"}
			if _, err := registry.Push(t.Context(), b.Reader, o); err == nil ||
				!strings.Contains(err.Error(), "kkbundle login") {
				t.Errorf("a wrong password: %v", err)
			}
		})
	}
}

// TestPushHeadRefused: some registries, or proxies before them, answer no HEAD, each in its own way.
func TestPushHeadRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 405, 501} {
		for _, auth := range []registrytest.Auth{registrytest.AuthBasic, registrytest.AuthToken} {
			t.Run(http.StatusText(status), func(t *testing.T) {
				t.Parallel()
				s, b := registrytest.Start(t, registrytest.Options{Auth: auth}), bundletest.New(t)
				s.AddFaults(registrytest.Fault{Method: "HEAD", Times: -1, Effect: registrytest.Fail(status, "")})
				push(t, b, options(s))
				sum := push(t, b, options(s))
				s.ClearFaults()
				checkPulled(t, s, b, sum)
			})
		}
	}
}

// locating changes the address of an upload.
func locating(change func(*url.URL)) registrytest.Effect {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for key, values := range rec.Header() {
				w.Header()[key] = values
			}
			if u, err := url.Parse(rec.Header().Get("Location")); err == nil && u.Path != "" && rec.Code < 300 {
				change(u)
				w.Header().Set("Location", u.String())
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		})
	}
}

// TestPushLocations: an upload goes on where the registry says.
func TestPushLocations(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(s *registrytest.Server, elsewhere string) func(*url.URL){
		"path": func(*registrytest.Server, string) func(*url.URL) {
			return func(u *url.URL) { u.Scheme, u.Host = "", "" }
		},
		"host":  func(*registrytest.Server, string) func(*url.URL) { return func(u *url.URL) { u.Scheme = "" } },
		"plain": func(*registrytest.Server, string) func(*url.URL) { return func(u *url.URL) { u.Scheme = "http" } },
		"query": func(*registrytest.Server, string) func(*url.URL) {
			return func(u *url.URL) { u.RawQuery += "&sig=a%2Fb+c" }
		},
		"another port": func(_ *registrytest.Server, elsewhere string) func(*url.URL) {
			return func(u *url.URL) { u.Scheme, u.Host = "http", elsewhere }
		},
	} {
		for _, tls := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				s, b := registrytest.Start(t, registrytest.Options{TLS: tls, Auth: registrytest.AuthBasic}), bundletest.New(t)
				to, err := url.Parse(s.URL)
				if err != nil {
					t.Fatal(err)
				}
				inner := httputil.NewSingleHostReverseProxy(to)
				elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Authorization") != "" {
						t.Error("another server got the password")
					}
					r.SetBasicAuth(s.Username, s.Password)
					inner.ServeHTTP(w, r)
				}))
				t.Cleanup(elsewhere.Close)
				s.AddFaults(registrytest.Fault{
					Path: regexp.MustCompile("/uploads/"), Times: -1,
					Effect: locating(change(s, strings.TrimPrefix(elsewhere.URL, "http://"))),
				})
				sum, err := registry.Push(t.Context(), b.Reader, options(s))
				if tls && what == "another port" {
					if err == nil || !strings.Contains(err.Error(), "refers to http://") {
						t.Errorf("a plain address: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				s.ClearFaults()
				checkPulled(t, s, b, sum)
			})
		}
	}
}

// TestPushToNoTLS: a server that answers TLS with something else is not a matter of trust.
func TestPushToNoTLS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed below
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("<!DOCTYPE HTML><p>Error code: 400</p>"))
			_ = c.Close()
		}
	}()
	o := registry.PushOptions{Registry: l.Addr().String(), Retries: -1}
	if _, err := registry.Push(t.Context(), bundletest.New(t).Reader, o); err == nil ||
		!strings.Contains(err.Error(), "--plain-http") {
		t.Errorf("got %v", err)
	}
}
