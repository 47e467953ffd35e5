package registrytest_test

import (
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func tag(t *testing.T, s *registrytest.Server, repo string) name.Tag {
	t.Helper()
	ref, err := name.NewTag(s.Host+"/"+repo+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func image(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(2048, 2)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func options(t *testing.T, s *registrytest.Server) []remote.Option {
	return []remote.Option{
		remote.WithAuthFromKeychain(s.Keychain()), remote.WithTransport(s.Transport()), remote.WithContext(t.Context()),
		remote.WithRetryPredicate(func(error) bool { return false }), remote.WithRetryStatusCodes(http.StatusTeapot),
	}
}

func TestServerServesAStandardClient(t *testing.T) {
	t.Parallel()
	cases := map[string]registrytest.Options{
		"plain":       {},
		"directory":   {Dir: t.TempDir()},
		"tls":         {TLS: true},
		"basic":       {TLS: true, Auth: registrytest.AuthBasic},
		"token":       {TLS: true, Auth: registrytest.AuthToken},
		"relative":    {RelativeURLs: true},
		"token plain": {Auth: registrytest.AuthToken, Username: "u", Password: "p"},
	}
	for what, o := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, o)
			ref, img := tag(t, s, "a/b"), image(t)
			if err := remote.Write(ref, img, options(t, s)...); err != nil {
				t.Fatal(err)
			}
			got, err := remote.Image(ref, options(t, s)...)
			if err != nil {
				t.Fatal(err)
			}
			gotDigest, _ := got.Digest()
			want, _ := img.Digest()
			if gotDigest != want {
				t.Errorf("digest %s, want %s", gotDigest, want)
			}
			if n := s.Count("PUT", `^/v2/a/b/manifests/1$`); n != 1 {
				t.Errorf("%d manifests put, want 1", n)
			}
			if s.Received() < 4096 {
				t.Errorf("%d bytes received, less than two layers", s.Received())
			}
		})
	}
}

func TestServerRefusesStrangers(t *testing.T) {
	t.Parallel()
	for what, auth := range map[string]registrytest.Auth{
		"basic": registrytest.AuthBasic,
		"token": registrytest.AuthToken,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{Auth: auth})
			wrong := authn.FromConfig(authn.AuthConfig{Username: s.Username, Password: "wrong"})
			err := remote.Write(tag(t, s, "a"), image(t), remote.WithAuth(wrong), remote.WithTransport(s.Transport()))
			var te *transport.Error
			if !errors.As(err, &te) || te.StatusCode != http.StatusUnauthorized {
				t.Errorf("got %v, want 401", err)
			}
		})
	}
}

func TestServerTokens(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthToken, TokenUses: 2})
	ref := tag(t, s, "a/b")
	auth, err := s.Keychain().Resolve(ref.Registry)
	if err != nil {
		t.Fatal(err)
	}
	rt, err := transport.NewWithContext(t.Context(), ref.Registry, auth, s.Transport(), []string{ref.Scope("pull")})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v2/a/b/tags/list", nil)
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
			t.Errorf("status %d, want 404", resp.StatusCode)
		}
	}
	want := [][]string{{"repository:a/b:pull"}, {"repository:a/b:pull"}}
	if diff := cmp.Diff(s.Scopes(), want); diff != "" {
		t.Errorf("scopes of the tokens issued (-got +want):\n%s", diff)
	}
}

func TestServerIndexChildren(t *testing.T) {
	t.Parallel()
	img := image(t)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{
			OS:           "linux",
			Architecture: "amd64",
		}}},
		mutate.IndexAddendum{Add: image(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{
			OS:           "linux",
			Architecture: "arm64",
		}}})
	cases := map[registrytest.Children]bool{
		"": false, registrytest.ChildrenAll: false, registrytest.ChildrenNone: true,
		registrytest.ChildrenList: true,
	}
	for children, want := range cases {
		t.Run(string(children), func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{Children: children, Platforms: []string{"linux/amd64"}})
			if err := remote.Write(tag(t, s, "a"), img, options(t, s)...); err != nil {
				t.Fatal(err)
			}
			err := remote.Put(tag(t, s, "a"), index, options(t, s)...)
			if got := err == nil; got != want {
				t.Errorf("sparse index taken: %v (%v), want %v", got, err, want)
			}
		})
	}
}

func TestServerReadOnly(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{ReadOnly: true})
	err := remote.Write(tag(t, s, "a"), image(t), options(t, s)...)
	var te *transport.Error
	if !errors.As(err, &te) || te.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("got %v, want 405", err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	get := func(t *testing.T, e registrytest.Effect) (*http.Response, []byte, error) {
		t.Helper()
		s := registrytest.Start(t, registrytest.Options{})
		s.AddFaults(registrytest.Fault{Method: "GET", Path: regexp.MustCompile(`^/v2/$`), Skip: 1, Effect: e})
		for range 2 { // the first goes through
			req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/v2/", strings.NewReader("hello"))
			resp, err := s.Transport().RoundTrip(req)
			if err != nil {
				return nil, nil, err
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || s.Count("GET", "") == 2 {
				return resp, body, err
			}
			if string(body) != "{}" {
				t.Fatalf("the first request met the fault: %q", body)
			}
		}
		return nil, nil, nil
	}
	resp, _, err := get(t, registrytest.Fail(429, "7"))
	if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "7" {
		t.Errorf("fail: %v %v", resp, err)
	}
	if _, body, err := get(t, registrytest.Corrupt()); err != nil || string(body) == "{}" {
		t.Errorf("corrupt: %q %v", body, err)
	}
	if _, body, err := get(t, registrytest.CutResponse(1)); err == nil {
		t.Errorf("cut response: %q and no error", body)
	}
	if _, _, err := get(t, registrytest.CutRequest(1)); err == nil {
		t.Error("cut request: no error")
	}
	if _, body, err := get(t, registrytest.LieAboutLength(5)); err == nil {
		t.Errorf("wrong length: %q and no error", body)
	}
	if resp, _, err := get(t, registrytest.Header("Docker-Distribution-Api-Version", "x")); err != nil ||
		resp.Header.Get("Docker-Distribution-Api-Version") != "x" {
		t.Errorf("header: %v %v", resp, err)
	}
}
