package registry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func TestPushRefusals(t *testing.T) {
	t.Parallel()
	other := registrytest.Start(t, registrytest.Options{TLS: true})
	cases := map[string]struct {
		server registrytest.Options
		change func(*registry.PushOptions)
		class  error
		want   []string
	}{
		"wrong password": {
			registrytest.Options{TLS: true, Auth: registrytest.AuthBasic},
			func(o *registry.PushOptions) { o.Auth = fixed{Username: "pusher", Password: "hunter2"} },
			registry.ErrLogin,
			[]string{`rejects user "pusher"`, "--password-stdin"},
		},
		"wrong password, token": {
			registrytest.Options{TLS: true, Auth: registrytest.AuthToken},
			func(o *registry.PushOptions) { o.Auth = fixed{Username: "pusher", Password: "hunter2"} },
			registry.ErrLogin,
			[]string{`rejects user "pusher"`, "incorrect username or password"},
		},
		"no login": {
			registrytest.Options{TLS: true, Auth: registrytest.AuthToken},
			func(o *registry.PushOptions) { o.Auth = nil },
			registry.ErrLogin,
			[]string{"requires a login and there is none", "kkbundle login"},
		},
		"read-only": {registrytest.Options{ReadOnly: true}, nil, nil, []string{"does not accept pushes", "read-only"}},
		"unknown CA": {
			registrytest.Options{TLS: true},
			func(o *registry.PushOptions) { o.Transport = nil },
			registry.ErrUnreachable,
			[]string{"CA unknown to this machine", "--ca FILE"},
		},
		"another CA": {
			registrytest.Options{TLS: true},
			func(o *registry.PushOptions) { o.Transport = other.Transport() },
			registry.ErrUnreachable,
			[]string{"--ca FILE"},
		},
		"nobody there": {
			registrytest.Options{TLS: true, Addr: "127.0.0.3:0"},
			func(o *registry.PushOptions) { o.Registry = strings.Replace(o.Registry, "127.0.0.3", "127.0.0.2", 1) },
			registry.ErrUnreachable,
			[]string{"connection to 127.0.0.2", "refused", "check that the registry runs"},
		},
		"no such name": {
			registrytest.Options{TLS: true},
			func(o *registry.PushOptions) {
				o.Registry = "no-such.example"
				rt := o.Transport.(*http.Transport) // tests ask no DNS server
				rt.DialContext = func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Name: "no-such.example", IsNotFound: true}}
				}
			},
			registry.ErrUnreachable,
			[]string{"the name no-such.example has no address"},
		},
		"certificate for another name": {
			registrytest.Options{TLS: true},
			func(o *registry.PushOptions) {
				rt, host := o.Transport.(*http.Transport), o.Registry
				rt.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, host)
				}
				o.Registry = "harbor.site"
			},
			registry.ErrUnreachable,
			[]string{"is for another name"},
		},
		"https to an http server": {
			registrytest.Options{},
			func(o *registry.PushOptions) { o.PlainHTTP = false },
			registry.ErrUnreachable,
			[]string{"speaks plain HTTP", "--plain-http"},
		},
		"http to an https server": {
			registrytest.Options{TLS: true},
			func(o *registry.PushOptions) { o.PlainHTTP = true },
			registry.ErrUnreachable,
			[]string{"omit --plain-http"},
		},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, c.server), bundletest.New(t)
			o := options(s)
			if c.change != nil {
				c.change(&o)
			}
			_, err := registry.Push(t.Context(), b.Reader, o)
			if err == nil {
				t.Fatal("no error")
			}
			if c.class != nil && !errors.Is(err, c.class) {
				t.Errorf("%v is not %v", err, c.class)
			}
			for _, w := range append(c.want, strings.Split(o.Registry, "/")[0]) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("secret, or more than one line: %q", err)
			}
			if n := s.Count("PUT", ""); n != 0 {
				t.Errorf("%d PUT requests", n)
			}
		})
	}
}

// TestPushToAPage: what answers with a page for people is named as no registry, before anything is sent.
func TestPushToAPage(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.New(t)
	s.AddFaults(registrytest.Fault{Times: -1, Effect: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<!DOCTYPE html><html>Sign in</html>"))
		})
	}})
	_, err := registry.Push(t.Context(), b.Reader, options(s))
	if err == nil || !strings.Contains(err.Error(), s.Host+" is no registry") {
		t.Errorf("got %v", err)
	}
	if n := s.Count("PUT", "") + s.Count("POST", ""); n != 0 {
		t.Errorf("%d requests to write", n)
	}
	// So is a web server that has nothing at /v2/, and one that sends everybody to TLS.
	for want, answer := range map[string]http.HandlerFunc{
		s.Host + " is no registry: it answers /v2/ with 404 Not Found": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("<html>404 Not Found</html>"))
		},
		s.Host + " redirects to HTTPS: omit --plain-http": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+strings.Split(r.Host, ":")[0]+r.URL.Path, http.StatusMovedPermanently)
		},
	} {
		s.ClearFaults()
		s.AddFaults(registrytest.Fault{Times: -1, Effect: func(http.Handler) http.Handler { return answer }})
		_, err := registry.Push(t.Context(), b.Reader, options(s))
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, registry.ErrUnreachable) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// Quay calls its answer a page, which it is not.
	s.ClearFaults()
	s.AddFaults(registrytest.Fault{Path: regexp.MustCompile("^/v2/$"), Times: -1, Effect: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("true"))
		})
	}})
	if _, err := registry.Push(t.Context(), b.Reader, options(s)); err != nil {
		t.Error(err)
	}
}

func TestPushItemErrors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		effect registrytest.Effect
		want   []string
	}{
		"forbidden": {
			registrytest.FailWith(403, "",
				`{"errors":[{"code":"DENIED","message":"no \u001b[31mpush\nfor you"}]}`),
			[]string{"may not push", "DENIED: no \uFFFD[31mpush for you", `"docker.io" must exist`},
		},
		"no project": {
			registrytest.FailWith(404, "",
				`{"errors":[{"code":"NAME_UNKNOWN","message":"project not found"}]}`),
			[]string{"project docker.io does not exist", "project not found", "create it"},
		},
		"too large": {registrytest.Fail(413, ""), []string{"client_max_body_size"}},
		"quota": {
			registrytest.FailWith(412, "",
				`{"errors":[{"code":"PRECONDITION","message":"quota exceeded"}]}`),
			[]string{"quota of project docker.io", "quota exceeded", "raise it"},
		},
		"too many requests": {registrytest.Fail(429, "0"), []string{"--jobs"}},
		"conflict":          {registrytest.Fail(409, ""), []string{"nobody may replace (immutable)"}},
		"no location":       {registrytest.Fail(202, ""), []string{"without a usable Location header: see whether a proxy"}},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{}), bundletest.New(t)
			s.AddFaults(registrytest.Fault{
				Method: "POST", Path: regexp.MustCompile("library/app/"), Times: -1,
				Effect: c.effect,
			})
			sum, err := registry.Push(t.Context(), b.Reader, options(s))
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range append(c.want, "image docker.io/library/app:1.0 to "+s.Host, "blob sha256:") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			if diff := cmp.Diff(states(sum), map[string]int{
				registry.StatePushed: 3,
				registry.StateFailed: 1,
			}); diff != "" {
				t.Errorf("states (-got +want):\n%s", diff)
			}
		})
	}
}

// TestPushNoRightsForOneRepository: token registries answer 401 where rights are missing, not only where the login is
// wrong.
func TestPushNoRightsForOneRepository(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{
		TLS: true, Auth: registrytest.AuthToken,
		MayPush: func(repository string) bool {
			return repository != "docker.io/library/app"
		},
	})
	sum, err := registry.Push(t.Context(), bundletest.New(t).Reader, options(s))
	if err == nil || errors.Is(err, registry.ErrLogin) ||
		!strings.Contains(err.Error(), `user "pusher" may not push to `+s.Host+"/docker.io/library/app") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(states(sum), map[string]int{registry.StatePushed: 3, registry.StateFailed: 1}); diff != "" {
		t.Errorf("states (-got +want):\n%s", diff)
	}
}

func TestPushDamagedBundle(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	img := bundletest.RandomImage(t, 5, 1, 3<<20)
	b.Image("a.example/bad:1", img)
	b.Image("a.example/good:1", bundletest.RandomImage(t, 6, 1, 1000))
	whole := b.Bundle()
	layers, _ := img.Layers()
	want, _ := layers[0].Digest()
	reader := damage(t, whole.Path)
	s := registrytest.Start(t, registrytest.Options{})
	sum, err := registry.Push(t.Context(), reader, options(s))
	if !errors.Is(err, bundle.ErrDamaged) || !strings.Contains(err.Error(), want.String()) ||
		!strings.Contains(err.Error(), "a.example/bad:1") {
		t.Errorf("got %v, want damage in blob %s of a.example/bad:1", err, want)
	}
	if sum.ItemsPushed != 1 || sum.ItemsFailed != 1 {
		t.Errorf("pushed %d, failed %d; want one each", sum.ItemsPushed, sum.ItemsFailed)
	}
	if n := s.Count("PUT", "bad/manifests/"); n != 0 {
		t.Errorf("%d manifests of the damaged image were sent", n)
	}
	if n := s.Count("PUT", "bad/blobs/"); n > 2 { // the damaged blob once, without retries
		t.Errorf("%d uploads for the damaged image", n)
	}
}

// TestPushForgedBundle sends content whose checksums were made to fit: the registry does not take it, and who is
// wrong is said.
func TestPushForgedBundle(t *testing.T) {
	t.Parallel()
	content := make([]byte, 9<<20)
	if _, err := rand.NewChaCha8([32]byte{7}).Read(content); err != nil {
		t.Fatal(err)
	}
	b := bundletest.NewBuilder(t)
	b.File("https://files.example/bad", "bad", nil, content)
	b.Image("a.example/good:1", bundletest.RandomImage(t, 6, 1, 1000))
	path := b.Bundle().Path
	bundletest.Forge(t, path, content)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := registrytest.Start(t, registrytest.Options{})
	sum, err := registry.Push(t.Context(), r, options(s))
	if want := digest.FromBytes(content).String(); !errors.Is(err, bundle.ErrDamaged) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want damage in blob %s", err, want)
	}
	if sum.ItemsPushed != 1 || sum.ItemsFailed != 1 {
		t.Errorf("pushed %d, failed %d; want one each", sum.ItemsPushed, sum.ItemsFailed)
	}
	if n := s.Count("PUT", "bad/manifests/"); n != 0 {
		t.Errorf("%d manifests of the forged file were sent", n)
	}
}

// damage copies a bundle, flips a byte in its middle, which is inside the one large blob, and opens it.
func damage(t *testing.T, path string) *bundle.Reader {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	bad := filepath.Join(t.TempDir(), "bad.kkb")
	if err := os.WriteFile(bad, data, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(bad)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestPushCollision(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	b.File("https://files.example/Tool", "Tool", nil, []byte("one"))
	b.File("https://files.example/tool", "tool", nil, []byte("two"))
	b.File("https://files.example/other", "other", nil, []byte("three"))
	_, err := registry.Push(t.Context(), b.Bundle().Reader, options(s))
	if err == nil || !strings.Contains(err.Error(),
		"https://files.example/Tool and file https://files.example/tool would both be") {
		t.Errorf("got %v", err)
	}
	if len(s.Requests()) != 0 {
		t.Errorf("%d requests were made", len(s.Requests()))
	}
}

func TestPushByDigest(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	img := bundletest.RandomImage(t, 3, 1, 1000)
	d, _ := img.Digest()
	b.Image("a.example/app@"+d.String(), img)
	b.Image("a.example/tagged:2@"+d.String(), img)
	bun := b.Bundle()
	sum := push(t, bun, options(s))
	checkPulled(t, s, bun, sum)
	if got, want := sum.Items[0].Destination, s.Host+"/a.example/app@"+d.String(); got != want {
		t.Errorf("destination %s, want %s", got, want)
	}
	if got, want := sum.Items[1].Destination, s.Host+"/a.example/tagged:2"; got != want {
		t.Errorf("destination %s, want %s", got, want)
	}
}

func TestPushWrongPin(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	b.Image("a.example/app:1@sha256:"+strings.Repeat("0", 64), bundletest.RandomImage(t, 3, 1, 1000))
	if _, err := registry.Push(t.Context(), b.Bundle().Reader, options(s)); err == nil ||
		!strings.Contains(err.Error(), "under a reference that wants") {
		t.Errorf("got %v", err)
	}
}

// fixed is a keychain with one login for everybody.
type fixed authn.AuthConfig

func (f fixed) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig(f)), nil
}
