package fetch_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestHeadWithoutGet: a server that answers every HEAD with 404 has what GET finds.
func TestHeadWithoutGet(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	helmRepo(t, s, true, "1.2.3")
	s.headless = true
	b := oneChart(manifest.Chart{Repo: s.url + "/repo", Name: "app", Version: "1.2.3"})
	if _, err := fetch.Resolve(t.Context(), b, options(newStore(t), s)); err != nil {
		t.Error(err)
	}
}

// TestReferrersWithoutHead: signatures are found although the registry answers every HEAD of a tag with 404.
func TestReferrersWithoutHead(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage(appRepo+":1", img)
	d := digestString(t, img)
	p.sign(d, d)
	p.AddFaults(registrytest.Fault{
		Method: http.MethodHead, Path: regexp.MustCompile("/manifests/"), Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	if got := referrers(resolve(t, app(), p.options(newStore(t)))); len(got) != 1 || !strings.Contains(got[0], ".sig") {
		t.Errorf("referrers %q", got)
	}
}

// TestReferrersElsewhere: a registry without the API may lead to a page for people that limits requests.
func TestReferrersElsewhere(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage(appRepo+":1", img)
	d := digestString(t, img)
	p.sign(d, d)
	p.AddFaults(
		registrytest.Fault{Path: regexp.MustCompile("/referrers/"), Times: -1, Effect: func(http.Handler) http.Handler {
			return http.RedirectHandler("/-/packages/app", http.StatusSeeOther)
		}},
		registrytest.Fault{Path: regexp.MustCompile("^/-/"), Times: -1, Effect: registrytest.Fail(429, "60")})
	var log bytes.Buffer
	o := p.options(newStore(t))
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if got := referrers(resolve(t, app(), o)); len(got) != 1 || strings.Contains(log.String(), "could be looked up") {
		t.Errorf("referrers %q, %s", got, &log)
	}
	if n := p.Count("", "^/-/"); n != 1 {
		t.Errorf("the page was asked %d times", n)
	}
}

// TestLostAttestation: registries that clean up remove attestations from indexes that still list them.
func TestLostAttestation(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd, attestation := platformImage(t, "linux/amd64"), platformImage(t, "unknown/unknown")
	idx := attest(t, add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), attestation, amd)
	u.pushIndex(appRepo+":1", idx)
	lost := digestString(t, attestation)
	u.AddFaults(registrytest.Fault{
		Path: regexp.MustCompile("/manifests/" + lost.String()), Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	var log bytes.Buffer
	o := u.options(newStore(t))
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	l := resolve(t, app(), o)
	items, err := fetch.All(t.Context(), l, u.options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(items[0].Absent) != 1 || items[0].Absent[0] != lost || !strings.Contains(log.String(), lost.String()) {
		t.Errorf("absent %s; %s", items[0].Absent, &log)
	}
	// Without the image itself nothing runs, so this stays an error, which names what is missing.
	u.ClearFaults()
	u.AddFaults(registrytest.Fault{
		Path: regexp.MustCompile("/manifests/" + digestString(t, amd).String()), Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	_, err = fetch.Resolve(t.Context(), app(), u.options(newStore(t)))
	wantError(t, err, digestString(t, amd).String())
}

// TestProxyWantsLogin: requests without TLS go through the proxy themselves, so its refusal looks like the registry's.
func TestProxyWantsLogin(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer refusing.Close()
	t.Setenv("HTTP_PROXY", "http://anna:s3cret@"+strings.TrimPrefix(refusing.URL, "http://"))
	t.Setenv("NO_PROXY", "")
	o := options(newStore(t))
	o.Sources = []sources.Source{{Host: "reg.lab:5000", PlainHTTP: true}}
	_, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "reg.lab:5000/app:1"), o)
	wantError(t, err, "proxy before reg.lab:5000 requires a login", "HTTP_PROXY")
	if strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
}

// TestUnreadLogin: a helper that is missing matters only where a login is needed.
func TestUnreadLogin(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credsStore": "no-such-helper"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	for auth, says := range map[registrytest.Auth]string{
		registrytest.AuthNone:  "",
		registrytest.AuthToken: "docker-credential-no-such-helper is not installed",
	} {
		u := newUpstream(t, registrytest.Options{TLS: true, Auth: auth})
		u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
		o := u.options(newStore(t))
		o.Keychain = nil
		_, err := fetch.Resolve(t.Context(), app(), o)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// TestPinnedIndex: an image that is pinned by the digest of its index is complete, because some registries take
// nothing else.
func TestPinnedIndex(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd, arm := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64")
	idx := add(t, add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), arm, "linux/arm64")
	u.pushIndex(appRepo+":1", idx)
	pinned := appRef + ":1@" + digestString(t, idx).String()
	for what, c := range map[string]struct {
		ref           string
		bundle, image manifest.IndexPolicy
		complete      bool
		says          string
	}{
		"pinned": {pinned, "", "", true, "goes with all its platforms"},
		"pinned and selected": {
			pinned, manifest.IndexesSelected, "", false,
			"goes without some of its platforms",
		},
		"pinned and selected for one": {
			pinned, "", manifest.IndexesSelected, false,
			"goes without some of its platforms",
		},
		"pinned, for one": {
			pinned, manifest.IndexesSelected, manifest.IndexesPinned, true,
			"goes with all its platforms",
		},
		"by tag":           {appRef + ":1", "", "", false, ""},
		"by tag, complete": {appRef + ":1", manifest.IndexesComplete, "", true, ""},
	} {
		b := images([]string{"linux/amd64"}, c.ref)
		b.Indexes, b.Images[0].Indexes = c.bundle, c.image
		var log bytes.Buffer
		o := u.options(newStore(t))
		o.Logger, o.Hosts = slog.New(slog.NewTextHandler(&log, nil)), fetch.NewHosts()
		l := resolve(t, b, o)
		again := u.options(newStore(t)) // the lock alone decides
		again.Hosts, again.Logger = o.Hosts, o.Logger
		items, err := fetch.All(t.Context(), l, again)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if pin := l.Items[0]; pin.Complete != c.complete || fmt.Sprint(pin.Platforms) != "[linux/amd64]" ||
			(len(items[0].Absent) == 0) != c.complete {
			t.Errorf("%s: %+v, absent %s", what, pin, items[0].Absent)
		}
		if strings.Count(log.String(), "pinned by the digest") != strings.Count(c.says, "goes") ||
			!strings.Contains(log.String(), c.says) {
			t.Errorf("%s: says %s", what, &log)
		}
		if c.says != "" && (!strings.Contains(log.String(), "all=") ||
			!strings.Contains(log.String(), "the manifest")) {
			t.Errorf("%s: no sizes, or not who pins it: %s", what, &log)
		}
	}
}

// strange is an upstream with an image, whose answers a test changes.
func strange(t *testing.T, o registrytest.Options, faults ...registrytest.Fault) *upstream {
	t.Helper()
	u := newUpstream(t, o)
	u.pushImage(appRepo+":1", platformImage(t, "linux/amd64"))
	for i := range faults {
		faults[i].Times = -1
	}
	u.AddFaults(faults...)
	return u
}

// everything resolves and downloads the image.
func everything(t *testing.T, u *upstream) error {
	t.Helper()
	o := u.options(newStore(t))
	l, err := fetch.Resolve(t.Context(), app(), o)
	if err == nil {
		_, err = fetch.All(t.Context(), l, o)
	}
	return err
}

// TestRefusedPing: a registry that refuses the question for the login method, or does not know its address, may have
// the image all the same.
func TestRefusedPing(t *testing.T) {
	t.Parallel()
	for _, status := range []int{204, 400, 403, 404, 405} {
		u := strange(t, registrytest.Options{}, registrytest.Fault{
			Path: regexp.MustCompile("^/v2/$"), Effect: registrytest.Fail(status, ""),
		})
		if err := everything(t, u); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestLateLogin: a registry that lets everybody see /v2/ asks for a login when something is wanted of it.
func TestLateLogin(t *testing.T) {
	t.Parallel()
	open := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	}
	for what, auth := range map[string]registrytest.Auth{
		"password": registrytest.AuthBasic,
		"token":    registrytest.AuthToken,
	} {
		u := strange(t, registrytest.Options{Auth: auth},
			registrytest.Fault{Path: regexp.MustCompile("^/v2/$"), Effect: open})
		if err := everything(t, u); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestForgottenDigest: a cache that names an old digest for a tag, or has manifests by tag only, has the image.
func TestForgottenDigest(t *testing.T) {
	t.Parallel()
	old := "sha256:" + strings.Repeat("a", 64)
	u := strange(t, registrytest.Options{}, registrytest.Fault{
		Method: http.MethodHead, Path: regexp.MustCompile("/manifests/1$"),
		Effect: registrytest.Header("Docker-Content-Digest", old),
	})
	if err := everything(t, u); err != nil {
		t.Error(err)
	}
}

// TestPageOfRegistry: a page to sign in, or of a server that is no registry, is named as one.
func TestPageOfRegistry(t *testing.T) {
	t.Parallel()
	page := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<!DOCTYPE html><html><body>Sign in</body></html>"))
		})
	}
	for path, want := range map[string]string{"/manifests/1$": "in place of a manifest", "/blobs/": "in place of it"} {
		u := strange(t, registrytest.Options{},
			registrytest.Fault{Method: http.MethodHead, Path: regexp.MustCompile("/manifests/"), Effect: registrytest.Fail(405, "")},
			registrytest.Fault{Path: regexp.MustCompile(path), Effect: page})
		wantError(t, everything(t, u), "web page", want, "sign-in")
	}
}

// TestRefusedElsewhere: a registry's object store that a firewall stops is named, and not the registry's login.
func TestRefusedElsewhere(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(store.Close)
	away := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, store.URL+"/blob?signature=sekret", http.StatusTemporaryRedirect)
		})
	}
	u := strange(t, registrytest.Options{},
		registrytest.Fault{Path: regexp.MustCompile("/blobs/"), Effect: away})
	host := strings.TrimPrefix(store.URL, "http://")
	o := u.options(newStore(t))
	o.Sources = append(o.Sources, sources.Source{Host: host, PlainHTTP: true})
	_, err := fetch.Resolve(t.Context(), app(), o)
	wantError(t, err, "redirected to "+host, "403", "firewall")
	if strings.Contains(err.Error(), "kkbundle login") || strings.Contains(err.Error(), "sekret") {
		t.Error(err)
	}
}

// TestWholeAsPart: some caches answer every request with a part, which is the whole.
func TestWholeAsPart(t *testing.T) {
	t.Parallel()
	part := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			n := rec.Body.Len()
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", n-1, n))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(rec.Body.Bytes())
		})
	}
	u := strange(t, registrytest.Options{}, registrytest.Fault{Path: regexp.MustCompile("/blobs/"), Effect: part})
	if err := everything(t, u); err != nil {
		t.Error(err)
	}
}

// TestLostChildWithoutPlatform: an index that lists a manifest without a platform, which the registry has lost, is read
// without it, unless a platform is missing then.
func TestLostChildWithoutPlatform(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd, other := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64")
	idx := mutate.AppendManifests(add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"),
		mutate.IndexAddendum{Add: other})
	u.pushIndex(appRepo+":1", idx)
	lost := digestString(t, other).String()
	u.AddFaults(registrytest.Fault{
		Path: regexp.MustCompile("/manifests/" + lost), Times: -1, Effect: registrytest.Fail(404, ""),
	})
	var log bytes.Buffer
	o := u.options(newStore(t))
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	b := app()
	if _, err := fetch.Resolve(t.Context(), b, o); err != nil || !strings.Contains(log.String(), lost) {
		t.Errorf("%v; %s", err, &log)
	}
	o.Platforms = []string{"linux/amd64", "linux/arm64"}
	_, err := fetch.Resolve(t.Context(), b, o)
	wantError(t, err, "missing platforms linux/arm64")
}
