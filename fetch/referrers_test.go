package fetch_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

const (
	sbomType = "application/spdx+json"
	appRepo  = "k8s/app"
	appRef   = "registry.k8s.io/app"
)

// A publisher signs and attaches things in the repository of the tests.
type publisher struct {
	*upstream
	signer *trusttest.Signer
}

func newPublisher(t testing.TB, o registrytest.Options) *publisher {
	t.Helper()
	s, err := trusttest.New("p256")
	if err != nil {
		t.Fatal(err)
	}
	return &publisher{newUpstream(t, o), s}
}

func (p *publisher) repo() name.Repository { return p.ref(appRepo + ":1").Context() }

// sign puts a signature of one digest under the tag of another.
func (p *publisher) sign(tag, of digest.Digest) {
	p.t.Helper()
	sig, err := p.signer.Simple("registry.k8s.io/app", of)
	if err == nil {
		err = trusttest.PushSimple(p.repo(), tag, []trust.SimpleSignature{sig}, p.remote()...)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *publisher) attach(to partial.Describable, artifactType string, content []byte) digest.Digest {
	p.t.Helper()
	desc, err := partial.Descriptor(to)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.attachTo(*desc, artifactType, content)
}

func (p *publisher) attachTo(desc v1.Descriptor, artifactType string, content []byte) digest.Digest {
	p.t.Helper()
	d, err := trusttest.Attach(p.repo(), desc, artifactType, content, p.remote()...)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *publisher) bundle(of partial.Describable, predicate string) []byte {
	p.t.Helper()
	data, err := p.signer.Bundle(digestString(p.t, of), predicate)
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// keyed returns options with a directory in which the signer's key is key.pub.
func (p *publisher) keyed(s *trusttest.Signer) fetch.Options {
	p.t.Helper()
	o := p.options(newStore(p.t))
	o.Dir = p.t.TempDir()
	if err := os.WriteFile(filepath.Join(o.Dir, "key.pub"), s.PEM, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return o
}

func app(platforms ...string) *manifest.Bundle {
	if len(platforms) == 0 {
		platforms = []string{"linux/amd64"}
	}
	return images(platforms, appRef+":1")
}

func signedApp(platforms ...string) *manifest.Bundle {
	b := app(platforms...)
	b.Images[0].Verify = &manifest.Verify{Key: "key.pub"}
	return b
}

func resolve(t testing.TB, b *manifest.Bundle, o fetch.Options) *manifest.Lock {
	t.Helper()
	o.Platforms, o.Policy = nil, ""
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// referrers lists the lock's referrers with what they are attached to.
func referrers(l *manifest.Lock) []string {
	var list []string
	for _, p := range l.Items {
		if p.Kind == manifest.ItemReferrer {
			list = append(list, fmt.Sprint(p.Ref, " ", p.ArtifactType, " ", p.Subject))
		}
	}
	slices.Sort(list)
	return list
}

func registries() map[string]registrytest.Options {
	return map[string]registrytest.Options{"without the API": {}, "with the API": {Referrers: true}}
}

func TestReferrers(t *testing.T) {
	t.Parallel()
	for what, o := range registries() {
		o.TLS, o.Auth = true, registrytest.AuthToken
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testReferrers(t, newPublisher(t, o))
		})
	}
}

func testReferrers(t *testing.T, p *publisher) {
	amd, arm := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64")
	idx := add(t, add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), arm, "linux/arm64")
	p.pushIndex(appRepo+":1", idx)
	root := digestString(t, idx)
	p.sign(root, root)
	var want, signatures []string
	expect := func(signature bool, ref, artifactType string, subject digest.Digest) {
		line := fmt.Sprint(appRef, ref, " ", artifactType, " ", subject)
		want = append(want, line)
		if signature {
			signatures = append(signatures, line)
		}
	}
	expect(true, ":sha256-"+root.Encoded()+".sig", ocispec.MediaTypeImageConfig, root)
	// More than a page of referrers, one of them signed itself; a child's; and one of a child that is not wanted.
	for i := range 4 {
		sbom := p.attach(idx, sbomType, fmt.Appendf(nil, "sbom %d", i))
		expect(false, "@"+sbom.String(), sbomType, root)
		if i == 0 {
			p.sign(sbom, sbom)
			expect(false, ":sha256-"+sbom.Encoded()+".sig", ocispec.MediaTypeImageConfig, sbom)
		}
	}
	child := p.attach(amd, trust.MediaTypeBundle, p.bundle(amd, trust.PredicateSign))
	expect(true, "@"+child.String(), trust.MediaTypeBundle, digestString(t, amd))
	p.attach(arm, sbomType, []byte("unwanted"))
	slices.Sort(want)
	slices.Sort(signatures)

	o := p.options(newStore(t))
	l := resolve(t, app(), o)
	if diff := cmp.Diff(want, referrers(l)); diff != "" {
		t.Fatalf("referrers (-want +got):\n%s", diff)
	}
	items, err := fetch.All(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	again := writeAgain(t, p, l)
	var x bundle.Index
	for i, it := range items {
		if diff := cmp.Diff(it, again[i]); diff != "" {
			t.Errorf("from the lock alone (-got +want):\n%s", diff)
		}
		x.Items = append(x.Items, bundle.Item(it))
	}
	if _, err := bundle.Create(t.Context(), filepath.Join(t.TempDir(), "b.kkb"), o.Store.(*cache.Cache), x,
		bundle.WriteOptions{}); err != nil {
		t.Error(err)
	}
	for policy, want := range map[manifest.ReferrerPolicy][]string{
		manifest.ReferrersSignatures: signatures,
		manifest.ReferrersNone:       nil,
	} {
		for what, b := range map[string]*manifest.Bundle{"for all": app(), "for one": app()} {
			if b.Referrers = policy; what == "for one" {
				b.Referrers, b.Images[0].Referrers = manifest.ReferrersAll, policy
			}
			if diff := cmp.Diff(want, referrers(resolve(t, b, o))); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", policy, what, diff)
			}
		}
	}
}

// writeAgain fetches a lock into an empty store after more was attached upstream, which must make no difference.
func writeAgain(t *testing.T, p *publisher, l *manifest.Lock) []fetch.Item {
	t.Helper()
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if l, err = manifest.ParseLock("lock", text); err != nil {
		t.Fatal(err)
	}
	p.attachTo(v1.Descriptor{
		MediaType: ocispec.MediaTypeImageIndex,
		Digest:    v1.Hash{Algorithm: "sha256", Hex: l.Items[0].Digest.Encoded()}, Size: l.Items[0].Size,
	},
		sbomType, []byte("later"))
	p.sign(l.Items[0].Digest, digest.FromString("later"))
	items, err := fetch.All(t.Context(), l, p.options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// A registry where nothing is attached is asked once for the API, and once for each tag that there could be.
func TestReferrersFewRequests(t *testing.T) {
	t.Parallel()
	for what, o := range registries() {
		u := newUpstream(t, o)
		b := images([]string{"linux/amd64"})
		for i := range 5 {
			u.pushImage(fmt.Sprintf("k8s/app%d:1", i), platformImage(t, "linux/amd64"))
			b.Images = append(b.Images, manifest.Image{Name: fmt.Sprintf("registry.k8s.io/app%d:1", i)})
		}
		u.ForgetRequests()
		if l := resolve(t, b, u.options(newStore(t))); len(l.Items) != 5 || l.Items[0].Referrers != "" {
			t.Errorf("%s: %+v", what, l.Items)
		}
		wantAPI, wantTags := 1, 4
		if o.Referrers {
			wantAPI, wantTags = 5, 3
		}
		if n := u.Count("", "/referrers/"); n != wantAPI {
			t.Errorf("%s: the API was asked %d times", what, n)
		}
		if n := u.Count("", "/manifests/sha256-"); n != 5*wantTags {
			t.Errorf("%s: %d tags were asked for", what, n)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	amd, arm := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64")
	idx := add(t, add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), arm, "linux/arm64")
	idx = attest(t, idx, platformImage(t, "unknown/unknown"), amd)
	root, amdDigest, armDigest := digestString(t, idx), digestString(t, amd), digestString(t, arm)
	raw, err := idx.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"linux/amd64", "linux/arm64"}
	cases := map[string]struct {
		publish   func(p *publisher)
		platforms []string
		says      []string // nil: it is signed
	}{
		"index, tag": {func(p *publisher) { p.sign(root, root) }, both, nil},
		"index, bundle": {func(p *publisher) {
			p.attach(idx, trust.MediaTypeBundle,
				p.bundle(idx, trust.PredicateSign))
		}, both, nil},
		"index, bytes": {func(p *publisher) {
			p.attach(idx, trust.MediaTypeBundle,
				must(t, p.signer.MessageBundle, raw))
		}, both, nil},
		"children": {func(p *publisher) {
			p.sign(amdDigest, amdDigest)
			p.attach(arm, trust.MediaTypeBundle, p.bundle(arm, trust.PredicateSign))
		}, both, nil},
		"child that is chosen": {func(p *publisher) { p.sign(amdDigest, amdDigest) }, both[:1], nil},
		"one of two children": {
			func(p *publisher) { p.sign(amdDigest, amdDigest) }, both,
			[]string{
				root.String() + " is not signed with key.pub", "nor is its child " + armDigest.String(),
				"no signature was found",
			},
		},
		"unsigned": {func(*publisher) {}, both, []string{root.String() +
			" is not signed with key.pub (sha256:", "; no signature was found"}},
		"another digest": {
			func(p *publisher) { p.sign(root, amdDigest) }, both,
			[]string{appRef + ":sha256-" + root.Encoded() + ".sig: signature of another artifact", amdDigest.String()},
		},
		"another key": {func(p *publisher) {
			other := newPublisher(t, registrytest.Options{})
			p.signer, other.signer = other.signer, p.signer
			p.sign(root, root)
			p.signer = other.signer
		}, both, []string{appRef + ":sha256-" + root.Encoded() + ".sig: the key did not make this signature"}},
		"attestation": {func(p *publisher) {
			p.attach(idx, trust.MediaTypeBundle, p.bundle(idx, "https://slsa.dev/provenance/v1"))
		}, both, []string{"an attestation (https://slsa.dev/provenance/v1), not a signature"}},
		"keyless": {func(p *publisher) {
			p.attach(idx, trust.MediaTypeBundle, []byte(`{"mediaType":"`+trust.MediaTypeBundle+
				`","verificationMaterial":{"certificate":{"rawBytes":""}},"dsseEnvelope":{}}`))
		}, both, []string{"without a key (keyless"}},
		"not a signature": {
			func(p *publisher) { p.attach(idx, sbomType, []byte("sbom")) }, both,
			[]string{"no signature was found"},
		},
	}
	for what, c := range cases {
		for kind, ro := range registries() {
			t.Run(what+", "+kind, func(t *testing.T) {
				t.Parallel()
				p := newPublisher(t, ro)
				p.pushIndex(appRepo+":1", idx)
				c.publish(p)
				o := p.keyed(p.signer)
				b := signedApp(c.platforms...)
				b.Referrers = manifest.ReferrersNone // what proves it travels along all the same
				o.Platforms = nil
				l, err := fetch.Resolve(t.Context(), b, o)
				if c.says != nil {
					wantError(t, err, append(c.says, "image "+appRef+":1: ")...)
					var unsigned *fetch.UnsignedError
					if !errors.As(err, &unsigned) || unsigned.Digest != root {
						t.Errorf("%#v", unsigned)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				testVerifyLock(t, p, l, o)
			})
		}
	}
}

func must[A, B any](t testing.TB, f func(A) (B, error), a A) B {
	t.Helper()
	b, err := f(a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// testVerifyLock checks that a build from the lock checks the signature again, before anything large is fetched.
func testVerifyLock(t *testing.T, p *publisher, l *manifest.Lock, o fetch.Options) {
	t.Helper()
	pin := l.Items[0]
	if pin.Key != "key.pub" || pin.KeyDigest == "" || len(referrers(l)) == 0 {
		t.Errorf("pins: %+v", l.Items)
	}
	o.Store = newStore(t)
	items, err := fetch.All(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := items[0].Descriptor.Annotations[bundle.AnnotationSignedBy]; got != pin.KeyDigest.String() {
		t.Errorf("signed by %s", got)
	}
	p.ForgetRequests()
	o.Store = newStore(t)
	unsigned := *l
	unsigned.Items = slices.DeleteFunc(slices.Clone(l.Items),
		func(p manifest.Pin) bool { return p.Kind == manifest.ItemReferrer })
	_, err = fetch.All(t.Context(), &unsigned, o)
	wantError(t, err, "is not signed with key.pub", "no signature was found")
	if n := p.Count("", "/blobs/"); n != 0 {
		t.Errorf("%d blobs were fetched of what is not signed", n)
	}
	other := newPublisher(t, registrytest.Options{})
	keyed := p.keyed(other.signer)
	_, err = fetch.All(t.Context(), l, keyed)
	wantError(t, err, "differs from the key of the lock", pin.KeyDigest.String(), "kkbundle lock")
	keyed.Dir = t.TempDir()
	_, err = fetch.All(t.Context(), l, keyed)
	wantError(t, err, "key.pub", "no such file")
}

// Whatever a registry answers, the image is locked with a warning, unless its signature is demanded.
func TestReferrersHostile(t *testing.T) {
	t.Parallel()
	img := platformImage(t, "linux/amd64")
	d := digestString(t, img)
	desc := must(t, partial.Descriptor, partial.Describable(img))
	list := func(body, link string) registrytest.Effect {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
				if link != "" {
					w.Header().Set("Link", fmt.Sprintf(link, r.URL.Path, len(r.URL.RawQuery)))
				}
				_, _ = w.Write([]byte(`{"schemaVersion":2,"manifests":[` + body + `]}`))
			})
		}
	}
	entry := func(d digest.Digest, size int64) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, ocispec.MediaTypeImageManifest, d, size)
	}
	api := regexp.MustCompile("/referrers/")
	cases := map[string]struct {
		effect registrytest.Effect
		path   *regexp.Regexp
		says   string
	}{
		"endless pages": {list("", `<%s?%d>; rel="next"`), api, "more than 100 pages"},
		"endless list": {
			list(strings.TrimSuffix(strings.Repeat(entry(d, 1)+",", 2000), ","), ""), api,
			"more than 1000",
		},
		// only the query counts
		"another host":    {list("", `<https://elsewhere.example%s?%d>; rel="next"`), api, "more than 100 pages"},
		"no query":        {list("", `<%s#%d>; rel="next"`), api, "no query"},
		"not JSON":        {list("x", ""), api, "referrers of " + d.String()},
		"missing":         {list(entry(digest.FromString("no"), 5), ""), api, "no such tag or digest"},
		"not a digest":    {list(entry("../../x", 5), ""), api, "digest"},
		"wrong size":      {list(entry(d, 5), ""), api, "wrong size"},
		"another subject": {list(entry(d, desc.Size), ""), api, "attached to another manifest"},
		"server error":    {registrytest.Fail(503, ""), api, "503"},
		"denied":          {registrytest.Fail(403, ""), api, "403"},
		"tag, error":      {registrytest.Fail(500, ""), regexp.MustCompile(`/sha256-.*\.att$`), "500"},
		"tag, lie":        {registrytest.Corrupt(), regexp.MustCompile(`/sha256-.*\.sig$`), "sends a wrong manifest"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, registrytest.Options{Referrers: true})
			p.pushImage(appRepo+":1", img)
			if what == "tag, lie" {
				p.sign(d, d)
			}
			kept := p.attach(img, sbomType, []byte("sbom"))
			p.AddFaults(registrytest.Fault{Method: "", Path: c.path, Times: -1, Effect: c.effect})
			o := p.keyed(p.signer)
			var log strings.Builder
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			l := resolve(t, app(), o)
			if l.Items[0].Referrers != manifest.ReferrersUnknown || !strings.Contains(log.String(), c.says) {
				t.Errorf("%+v\n%s", l.Items[0], log.String())
			}
			if found := len(referrers(l)) == 1; found != (c.path != api) {
				t.Errorf("%s: %v", kept, referrers(l))
			}
			items, err := fetch.All(t.Context(), l, o)
			if err != nil || items[0].Descriptor.Annotations[bundle.AnnotationReferrers] != "unknown" {
				t.Errorf("%+v, %v", items, err)
			}
			o.Platforms = nil
			_, err = fetch.Resolve(t.Context(), signedApp(), o)
			wantError(t, err, "is not signed", "not all attached artifacts could be checked", c.says)
		})
	}
}

// A registry without the API may refuse the question, or leave it without an answer: the list under the tag counts then,
// and the question is not repeated for ever.
func TestReferrersWithoutAnswer(t *testing.T) {
	t.Parallel()
	api := regexp.MustCompile("/referrers/")
	for what, effect := range map[string]registrytest.Effect{
		"401": registrytest.Fail(401, ""), "403": registrytest.Fail(403, ""), "silence": registrytest.Stall(),
		"a page": func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte("<html></html>"))
			})
		},
	} {
		for _, auth := range []registrytest.Auth{registrytest.AuthNone, registrytest.AuthBasic, registrytest.AuthToken} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				p := newPublisher(t, registrytest.Options{TLS: true, Auth: auth})
				img := platformImage(t, "linux/amd64")
				p.pushImage(appRepo+":1", img)
				sig := p.attach(img, trust.MediaTypeBundle, p.bundle(img, trust.PredicateSign))
				p.AddFaults(registrytest.Fault{Path: api, Times: -1, Effect: effect})
				p.ForgetRequests()
				o := p.keyed(p.signer)
				o.Retry.Idle = time.Second
				l := resolve(t, signedApp(), o)
				if got := referrers(l); len(got) != 1 || !strings.Contains(got[0], sig.String()) {
					t.Errorf("found %v, want %s", got, sig)
				}
				if unknown := l.Items[0].Referrers == manifest.ReferrersUnknown; unknown != (what != "a page") {
					t.Errorf("the lock says %q", l.Items[0].Referrers)
				}
				if n := p.Count("", "/referrers/"); what == "silence" && n != 1 {
					t.Errorf("the API was asked %d times", n)
				}
				o.Platforms = nil
				_, err := fetch.Resolve(t.Context(), app(), o)
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Levels of referrers are followed so far and no further.
func TestReferrersOfReferrers(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage(appRepo+":1", img)
	subject := *must(t, partial.Descriptor, partial.Describable(img))
	for i := range 6 {
		d := p.attachTo(subject, sbomType, fmt.Appendf(nil, "level %d", i))
		subject = v1.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest,
			Digest:    v1.Hash{Algorithm: "sha256", Hex: d.Encoded()}, Size: 1,
		}
	}
	l := resolve(t, app(), p.options(newStore(t)))
	if n := len(referrers(l)); n != 4 || l.Items[0].Referrers != manifest.ReferrersUnknown {
		t.Errorf("%d levels, %+v", n, l.Items[0])
	}
}

// TestReferrerLost: an error about an attachment's lost content names the image, the attachment and the way out.
func TestReferrerLost(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage(appRepo+":1", img)
	content := []byte("an sbom that is lost")
	sbom := p.attach(img, sbomType, content)
	p.AddFaults(lostBlob(digest.FromBytes(content)))
	o := p.options(newStore(t))
	_, err := fetch.All(t.Context(), resolve(t, app(), o), o)
	wantError(t, err, appRef+"@"+sbom.String(), "attached to", digestString(t, img).String(), "referrers:", "lost")
}

// TestSignatureLost: a signature whose content is lost does not count, and another does.
func TestSignatureLost(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage(appRepo+":1", img)
	bundle := p.bundle(img, trust.PredicateSign)
	p.attach(img, trust.MediaTypeBundle, bundle)
	p.AddFaults(lostBlob(digest.FromBytes(bundle)))
	o := p.keyed(p.signer)
	o.Platforms = nil
	_, err := fetch.Resolve(t.Context(), signedApp(), o)
	wantError(t, err, "is not signed", "content is lost", "sign again")
	p.sign(digestString(t, img), digestString(t, img))
	resolve(t, signedApp(), o)
}

// TestAttestationLost: the error about lost content of an attestation in an index names the attestation and its image.
func TestAttestationLost(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd, about := platformImage(t, "linux/amd64"), platformImage(t, "unknown/unknown")
	u.pushIndex(appRepo+":1", attest(t, add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), about, amd))
	layers, err := about.Layers()
	if err != nil {
		t.Fatal(err)
	}
	u.AddFaults(lostBlob(digest.Digest(must(t, v1.Hash.MarshalText, must(t, v1.Layer.Digest, layers[0])))))
	o := u.options(newStore(t))
	_, err = fetch.All(t.Context(), resolve(t, app(), o), o)
	wantError(t, err, "attestation "+digestString(t, about).String(), appRef+":1", "lost this blob", "by its digest")
}

// lostBlob is a registry that has lost a blob.
func lostBlob(d digest.Digest) registrytest.Fault {
	return registrytest.Fault{
		Path: regexp.MustCompile("/blobs/" + d.String()), Times: -1,
		Effect: registrytest.FailWith(404, "", `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown"}]}`),
	}
}
