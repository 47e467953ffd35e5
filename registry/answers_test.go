package registry_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestPushTagVisibleLate: some registries show a tag only some reads after it was put.
func TestPushTagVisibleLate(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	for method, skip := range map[string]int{http.MethodHead: 1, http.MethodGet: 0} {
		s.AddFaults(registrytest.Fault{
			Method: method, Path: regexp.MustCompile("/manifests/1$"), Skip: skip, Times: 2,
			Effect: registrytest.Fail(404, ""),
		})
	}
	bun := b.Bundle()
	checkPulled(t, s, bun, push(t, bun, options(s)))
}

// TestPushConflict: a registry that still works on a manifest takes it a little later; an immutable tag it never takes.
func TestPushConflict(t *testing.T) {
	t.Parallel()
	for body, times := range map[string]int{
		`{"errors":[{"code":"CONFLICT","message":"artifact is being pushed"}]}`: 2,
		`{"errors":[{"code":"CONFLICT","message":"tag is immutable"}]}`:         1,
	} {
		s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
		b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
		s.AddFaults(registrytest.Fault{
			Method: http.MethodPut, Path: regexp.MustCompile("/manifests/"), Times: 2,
			Effect: registrytest.FailWith(409, "", body),
		})
		_, err := registry.Push(t.Context(), b.Bundle().Reader, options(s))
		if n := s.Count(http.MethodPut, "/manifests/"); (err == nil) != (times == 2) || times == 1 && n != 1 {
			t.Errorf("%s: %d times, %v", body, n, err)
		}
	}
}

// TestPushTwoDigestsOfATag: operators pin one tag to several digests over time. All of them arrive, one under the tag.
func TestPushTwoDigestsOfATag(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	for i, ref := range []string{"a.example/app:1", "a.example/app:1", "a.example/app:1"} {
		img := bundletest.RandomImage(t, int64(i+1), 1, 1000)
		if d, err := img.Digest(); err != nil {
			t.Fatal(err)
		} else if i < 2 { // the last one is wanted by its tag
			ref += "@" + d.String()
		}
		b.Image(ref, img)
	}
	bun := b.Bundle()
	sum := push(t, bun, options(s))
	checkPulled(t, s, bun, sum)
	tagged := 0
	for i, it := range bun.Reader.Index().Items {
		if isTag := strings.HasSuffix(sum.Items[i].Destination, ":1"); isTag {
			tagged++
			if strings.Contains(it.Ref, "@") {
				t.Errorf("%s took the tag from the image that is wanted by it", it.Ref)
			}
		}
	}
	if tagged != 1 {
		t.Errorf("%d items have the tag", tagged)
	}
}

// TestPushTagsDifferInCase: where a registry takes them for one, as Gitea does, none gets lost silently.
func TestPushTagsDifferInCase(t *testing.T) {
	t.Parallel()
	for _, folds := range []bool{false, true} {
		s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
		b.Image("a.example/app:V1", bundletest.RandomImage(t, 1, 1, 1000))
		b.Image("a.example/app:v1", bundletest.RandomImage(t, 2, 1, 1000))
		if folds {
			s.AddFaults(registrytest.Fault{
				Path: regexp.MustCompile("/manifests/"), Times: -1,
				Effect: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						r.URL.Path = strings.ToLower(r.URL.Path)
						next.ServeHTTP(w, r)
					})
				},
			})
		}
		bun := b.Bundle()
		for range 2 {
			_, err := registry.Push(t.Context(), bun.Reader, options(s))
			if (err != nil) != folds {
				t.Errorf("folds %v: %v", folds, err)
			}
			if err != nil && (!strings.Contains(err.Error(), "V1") || !strings.Contains(err.Error(), "app:v1") ||
				!strings.Contains(err.Error(), "leave one out")) {
				t.Error(err)
			}
		}
	}
}

// TestPushLimit: Gitea answers 403 without a word where a limit of its packages is exceeded, after it has opened the
// upload, which it opens only for those who may push.
func TestPushLimit(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/blobs/uploads/.+", "/manifests/"} {
		s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
		b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
		s.AddFaults(registrytest.Fault{
			Method: http.MethodPut, Path: regexp.MustCompile(path), Times: -1, Effect: registrytest.Fail(403, ""),
		})
		_, err := registry.Push(t.Context(), b.Bundle().Reader, options(s))
		if err == nil || !strings.Contains(err.Error(), "limit") || strings.Contains(err.Error(), "may not push") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestPushNameRefused: the way out of a registry's limit on levels is a shorter name.
func TestPushNameRefused(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	b.Image("a.example/deep/down/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	s.AddFaults(registrytest.Fault{
		Path: regexp.MustCompile("/deep/"), Times: -1,
		Effect: registrytest.FailWith(404, "",
			`{"errors":[{"code":"NAME_INVALID","message":"invalid repository name"}]}`),
	})
	_, err := registry.Push(t.Context(), b.Bundle().Reader, options(s))
	if err == nil || !strings.Contains(err.Error(), "--rename") ||
		!strings.Contains(err.Error(), "invalid repository name") {
		t.Error(err)
	}
}

// TestPushPinnedSparseDryRun: what a registry may refuse is known before the trip.
func TestPushPinnedSparseDryRun(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	_, upstream := sparse(t, sparseRef, "amd64")
	for ref, warnings := range map[string]int{sparseRef + "@" + upstream: 1, sparseRef: 0} {
		b, _ := sparse(t, ref, "amd64")
		o := options(s)
		o.DryRun = true
		if sum := push(t, b, o); len(sum.Warnings) != warnings ||
			warnings == 1 && !strings.Contains(sum.Warnings[0], "indexes: pinned") {
			t.Errorf("%s: warnings %q", ref, sum.Warnings)
		}
	}
}

// TestPushReferrersElsewhere: a registry without the referrers API may lead to a page for people that limits requests.
func TestPushReferrersElsewhere(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	s.AddFaults(
		registrytest.Fault{Path: regexp.MustCompile("/referrers/"), Times: -1, Effect: func(http.Handler) http.Handler {
			return http.RedirectHandler("/-/packages/app", http.StatusSeeOther)
		}},
		registrytest.Fault{Path: regexp.MustCompile("^/-/"), Times: -1, Effect: registrytest.Fail(429, "60")})
	b := bundletest.New(t)
	checkPulled(t, s, b, push(t, b, options(s)))
	if n := s.Count("", "^/-/"); n > 1 {
		t.Errorf("the page was asked %d times", n)
	}
}

// asked remembers whose login it was asked for.
type asked struct {
	authn.Keychain
	resource string
}

func (a *asked) Resolve(r authn.Resource) (authn.Authenticator, error) {
	a.resource = r.String()
	return a.Keychain.Resolve(r)
}

// TestPushLoginOfAPath: a login may be for a path within the registry, so the prefix of the push is asked for.
func TestPushLoginOfAPath(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthBasic}), bundletest.NewBuilder(t)
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 1, 1000))
	o := options(s)
	k := &asked{Keychain: o.Auth}
	o.Auth, o.Registry = k, s.Host+"/team-a"
	push(t, b.Bundle(), o)
	if k.resource != s.Host+"/team-a" {
		t.Errorf("asked for the login of %s", k.resource)
	}
}

// TestPushProxyWantsLogin: requests without TLS go through the proxy themselves, so its refusal looks like the
// registry's.
func TestPushProxyWantsLogin(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	o := registry.PushOptions{
		Registry: "reg.lab:5000", PlainHTTP: true, Retries: -1,
		Transport: answering(http.StatusProxyAuthRequired),
	}
	_, err := registry.Push(t.Context(), b.Reader, o)
	if err == nil || !strings.Contains(err.Error(), "proxy before reg.lab:5000 requires a login") ||
		!strings.Contains(err.Error(), "HTTP_PROXY") {
		t.Error(err)
	}
}

// answering is a network where every request gets one status.
type answering int

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: int(a), Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")),
		Request: r,
	}, nil
}
