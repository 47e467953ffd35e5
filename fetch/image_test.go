package fetch_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// upstream is a registry with what the tests ask for.
type upstream struct {
	*registrytest.Server
	t testing.TB
}

func newUpstream(t testing.TB, o registrytest.Options) *upstream {
	return &upstream{registrytest.Start(t, o), t}
}

func (u *upstream) ref(path string) name.Reference {
	ref, err := name.ParseReference(u.Host+"/"+path, name.Insecure)
	if err != nil {
		u.t.Fatal(err)
	}
	return ref
}

func (u *upstream) remote() []remote.Option {
	return []remote.Option{remote.WithAuthFromKeychain(u.Keychain()), remote.WithTransport(u.Transport())}
}

func (u *upstream) pushImage(path string, img v1.Image) {
	u.t.Helper()
	if err := remote.Write(u.ref(path), img, u.remote()...); err != nil {
		u.t.Fatal(err)
	}
}

func (u *upstream) pushIndex(path string, idx v1.ImageIndex) {
	u.t.Helper()
	if err := remote.WriteIndex(u.ref(path), idx, u.remote()...); err != nil {
		u.t.Fatal(err)
	}
}

// options reach the registry as registry.k8s.io and docker.io.
func (u *upstream) options(store fetch.Store) fetch.Options {
	o := options(store)
	o.Keychain = u.Keychain()
	for host, path := range map[string]string{"registry.k8s.io": "/k8s", "docker.io": "/hub"} {
		o.Sources = append(o.Sources, sources.Source{
			Host: host, Mirrors: sources.Mirrors{u.Host + path},
			MirrorOnly: true, CA: u.CAFile, PlainHTTP: u.CAFile == "",
		})
	}
	return o
}

func platformImage(t testing.TB, platform string) v1.Image {
	t.Helper()
	img, err := random.Image(20_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func add(t testing.TB, idx v1.ImageIndex, child mutate.Appendable, platform string) v1.ImageIndex {
	t.Helper()
	a := mutate.IndexAddendum{Add: child}
	if platform != "" {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		a.Platform = p
	}
	return mutate.AppendManifests(idx, a)
}

// attest adds what says something about a child, as BuildKit does.
func attest(t testing.TB, idx v1.ImageIndex, child, of v1.Image) v1.ImageIndex {
	t.Helper()
	return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: child, Descriptor: v1.Descriptor{
		Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": digestString(t, of).String(),
		},
	}})
}

func digestString(t testing.TB, d partial.Describable) digest.Digest {
	t.Helper()
	h, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.Digest(h.String())
}

func images(platforms []string, names ...string) *manifest.Bundle {
	b := &manifest.Bundle{Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: platforms}
	for _, n := range names {
		b.Images = append(b.Images, manifest.Image{Name: n})
	}
	return b
}

func TestImages(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]registrytest.Options{
		"plain": {},
		"basic": {TLS: true, Auth: registrytest.AuthBasic},
		"token": {TLS: true, Auth: registrytest.AuthToken},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testImages(t, newUpstream(t, o))
		})
	}
}

func testImages(t *testing.T, u *upstream) {
	amd, arm, other := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64/v8"),
		platformImage(t, "linux/s390x")
	attestation, unwanted := platformImage(t, "unknown/unknown"), platformImage(t, "unknown/unknown")
	idx := attest(t, attest(t, v1.ImageIndex(empty.Index), attestation, amd), unwanted, other)
	idx = add(t, add(t, add(t, idx, amd, "linux/amd64"), arm, "linux/arm64/v8"), other, "linux/s390x")
	idx = mutate.IndexMediaType(idx, types.DockerManifestList)
	single := mutate.MediaType(platformImage(t, "linux/amd64"), types.OCIManifestSchema1)
	u.pushIndex("k8s/pause:3.10.1", idx)
	u.pushIndex("k8s/same:1", idx)
	u.pushImage("hub/library/nginx:1.29", single)
	u.ForgetRequests()

	store := newStore(t)
	o := u.options(store)
	o.Platforms = nil
	b := images([]string{"linux/amd64", "linux/arm64"}, "registry.k8s.io/pause:3.10.1", "registry.k8s.io/same:1")
	single1 := images([]string{"linux/amd64"}, "nginx:1.29", "nginx:1.29")
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	l2, err := fetch.Resolve(t.Context(), single1, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(l2.Items) != 1 || l2.Items[0].Ref != "docker.io/library/nginx:1.29" ||
		l2.Items[0].Name != "docker.io/library/nginx" || l2.Items[0].Version != "1.29" {
		t.Errorf("pins: %+v", l2.Items)
	}
	l.Items = append(l.Items, l2.Items...)
	pin := l.Items[0]
	if pin.Ref != "registry.k8s.io/pause:3.10.1" || pin.Digest != digestString(t, idx) ||
		pin.MediaType != string(types.DockerManifestList) ||
		!slices.Equal(pin.Platforms, []string{"linux/amd64", "linux/arm64"}) ||
		pin.Verified != manifest.VerifiedMirror {
		t.Errorf("pin: %+v", pin)
	}
	items, err := fetch.All(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	wantAbsent := []digest.Digest{digestString(t, other), digestString(t, unwanted)}
	slices.Sort(wantAbsent)
	if len(items) != 3 || !slices.Equal(items[0].Absent, wantAbsent) {
		t.Errorf("items: %+v", items)
	}
	if p := items[2].Descriptor.Platform; p == nil || p.Architecture != "amd64" {
		t.Errorf("platform of a single image: %+v", p)
	}
	raw, err := idx.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, store, pin.Digest), raw) {
		t.Error("the index is not upstream's, byte for byte")
	}
	for _, img := range []v1.Image{amd, arm, attestation, single} {
		wantImage(t, store, img)
	}
	for _, d := range wantAbsent {
		if _, ok, _ := store.Stat(t.Context(), d); ok {
			t.Errorf("%s was not chosen, and fetched", d)
		}
	}
	counts := map[string]int{}
	for _, r := range u.Requests() {
		if r.Method == http.MethodGet && r.Status == 200 &&
			regexp.MustCompile("/(blobs|manifests)/sha256:").MatchString(r.Path) {
			counts[r.Path[strings.Index(r.Path, "sha256:"):]]++
		}
	}
	for d, n := range counts {
		if n != 1 {
			t.Errorf("%s was fetched %d times", d, n)
		}
	}
	// An index, 4 manifests (one attests something) and their 4 configs and 8 layers; the single image has no index.
	if len(counts) != 1+4+4+8 {
		t.Errorf("%d things were fetched", len(counts))
	}
	u.ForgetRequests()
	if _, err := fetch.All(t.Context(), l, o); err != nil {
		t.Fatal(err)
	}
	if n := len(u.Requests()); n != 0 {
		t.Errorf("a second All asked %d times: %+v", n, u.Requests())
	}
}

func wantImage(t *testing.T, store fetch.Store, img v1.Image) {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	all := []v1.Hash{m.Config.Digest}
	for _, l := range m.Layers {
		all = append(all, l.Digest)
	}
	for _, h := range all {
		d := digest.Digest(h.String())
		if got := digestOf(content(t, store, d)); got != d {
			t.Errorf("blob %s has the digest %s", d, got)
		}
	}
	if d := digestString(t, img); digestOf(content(t, store, d)) != d {
		t.Errorf("manifest %s is not upstream's", d)
	}
}

func TestImagePlatforms(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd, arm, armv6 := platformImage(t, "linux/amd64"), platformImage(t, "linux/arm64"),
		platformImage(t, "linux/arm/v6")
	u.pushIndex("k8s/amd:1", add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"))
	u.pushIndex("k8s/unsaid:1", add(t, add(t, v1.ImageIndex(empty.Index), amd, ""), arm, ""))
	u.pushIndex("k8s/nested:1",
		add(t, add(t, v1.ImageIndex(empty.Index), add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"), ""), armv6,
			"linux/arm/v6"))
	u.pushImage("k8s/single:1", arm)
	artifact, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		"application/vnd.example.config"),
		mutate.Addendum{Layer: static.NewLayer([]byte("policy"), "application/vnd.example.policy")})
	if err != nil {
		t.Fatal(err)
	}
	u.pushImage("k8s/artifact:1", artifact)

	cases := map[string]struct {
		image     string
		platforms []string
		policy    manifest.PlatformPolicy
		says      []string // of the error; nil is none
		pinned    []string
		items     int
	}{
		"strict": {
			"amd:1",
			[]string{"linux/amd64", "linux/arm64"},
			"",
			[]string{
				"registry.k8s.io/amd:1", "missing platforms linux/arm64", "has linux/amd64",
				"platformPolicy: warn",
			},
			nil, 0,
		},
		"warn": {
			"amd:1",
			[]string{"linux/amd64", "linux/arm64"},
			"warn", nil,
			[]string{"linux/amd64"},
			1,
		},
		"warn, nothing left": {
			"amd:1",
			[]string{"linux/arm64"},
			"warn",
			[]string{"missing platforms linux/arm64", "nothing"},
			nil, 0,
		},
		"index without platforms": {"unsaid:1", []string{"linux/arm64"}, "", nil, []string{"linux/arm64"}, 1},
		"nested":                  {"nested:1", []string{"linux/amd64"}, "", nil, []string{"linux/amd64"}, 1},
		"older variant":           {"nested:1", []string{"linux/arm"}, "", nil, []string{"linux/arm/v7"}, 1},
		"newer variant": {
			"nested:1",
			[]string{"linux/arm/v5"},
			"",
			[]string{"missing platforms linux/arm/v5", "linux/amd64, linux/arm/v6"},
			nil, 0,
		},
		"single, strict": {
			"single:1",
			[]string{"linux/amd64"},
			"",
			[]string{"missing platforms linux/amd64", "has linux/arm64"},
			nil, 0,
		},
		"single, warn": {"single:1", []string{"linux/amd64"}, "warn", nil, nil, 1},
		"artifact":     {"artifact:1", []string{"linux/amd64"}, "", nil, nil, 1},
		"no such tag": {"amd:2", []string{"linux/amd64"}, "", []string{"registry.k8s.io (mirror " + u.Host +
			"/k8s)", "no such tag"}, nil, 0},
		"no such repository": {
			"none:1",
			[]string{"linux/amd64"},
			"",
			[]string{"no such", u.Host + "/k8s/none"},
			nil, 0,
		},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := u.options(newStore(t))
			o.Platforms = nil
			b := images(c.platforms, "registry.k8s.io/"+c.image)
			b.PlatformPolicy = c.policy
			l, err := fetch.Resolve(t.Context(), b, o)
			if c.says != nil {
				wantError(t, err, append(c.says, "image registry.k8s.io/"+c.image)...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(l.Items[0].Platforms, c.pinned) {
				t.Errorf("pinned platforms %v, want %v", l.Items[0].Platforms, c.pinned)
			}
			o.Store = newStore(t)
			o.Platforms = c.platforms
			items, err := fetch.All(t.Context(), l, o)
			if err != nil || len(items) != c.items {
				t.Errorf("%v, %v", items, err)
			}
		})
	}
}

// TestPinnedPlatformsMustBeThere: a lock names the platforms that the build found, so an index without one of them is
// an error, whatever the policy was. An image of one platform has no index to look at.
func TestPinnedPlatformsMustBeThere(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	amd := platformImage(t, "linux/amd64")
	u.pushIndex("k8s/amd:1", add(t, v1.ImageIndex(empty.Index), amd, "linux/amd64"))
	u.pushImage("k8s/single:1", amd)
	l, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/amd:1",
		"registry.k8s.io/single:1"), u.options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch.All(t.Context(), l, u.options(newStore(t))); err != nil {
		t.Errorf("the lock as it was written: %v", err)
	}
	for i := range l.Items {
		l.Items[i].Platforms = []string{"linux/amd64", "linux/arm64"}
	}
	_, err = fetch.All(t.Context(), l, u.options(newStore(t)))
	wantError(t, err, "registry.k8s.io/amd:1", "missing platforms linux/arm64")
	if strings.Contains(err.Error(), "single:1") {
		t.Errorf("an image without an index was looked at: %v", err)
	}
}

func TestImagePin(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	u.pushImage("k8s/app:1", img)
	b := images([]string{"linux/amd64"}, "registry.k8s.io/app:1")
	b.Images[0].Digest = digestString(t, img).String()
	l, err := fetch.Resolve(t.Context(), b, u.options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Items[0]; p.Ref != "registry.k8s.io/app:1@"+b.Images[0].Digest ||
		p.Verified != manifest.VerifiedManifest || p.Version != "1" {
		t.Errorf("pin: %+v", p)
	}
	b.Images[0].Digest = digest.FromString("no").String()
	_, err = fetch.Resolve(t.Context(), b, u.options(newStore(t)))
	wantError(t, err, "no such tag or digest")
	wantError(t, err, "; its tags are ")
	l.Items[0].Ref, l.Items[0].Digest = "registry.k8s.io/app:1", digest.FromString("no")
	_, err = fetch.All(t.Context(), l, u.options(newStore(t)))
	wantError(t, err, "kkbundle lock")
	b.Images[0].Digest = "sha512:" + strings.Repeat("0", 128)
	_, err = fetch.Resolve(t.Context(), b, u.options(newStore(t)))
	wantError(t, err, "only sha256")
}

func TestImageForeignLayer(t *testing.T) {
	t.Parallel()
	// The CNCF registry takes no such manifest without the layer; others do.
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	img, err := mutate.Append(platformImage(t, "linux/amd64"),
		mutate.Addendum{
			Layer: static.NewLayer([]byte("x"), types.DockerForeignLayer),
			URLs:  []string{"https://elsewhere.example/x"},
		})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/win:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	o := options(newStore(t))
	o.Sources = []sources.Source{{Host: host, PlainHTTP: true}}
	_, err = fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, host+"/win:1"), o)
	wantError(t, err, "redistributed", "foreign")
}

func TestImageLyingUpstream(t *testing.T) {
	t.Parallel()
	img := platformImage(t, "linux/amd64")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	h, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	wrong := digest.FromString("wrong").String()
	cases := map[string]struct {
		faults []registrytest.Fault
		says   []string
	}{
		"manifest of another digest": {
			[]registrytest.Fault{{
				Method: "GET", Path: regexp.MustCompile("/manifests/"), Times: -1,
				Effect: registrytest.Corrupt(),
			}},
			[]string{"sends a wrong manifest", digestString(t, img).String()},
		},
		"tag of another digest": {[]registrytest.Fault{
			{Method: "HEAD", Path: regexp.MustCompile("/manifests/"), Times: -1, Effect: registrytest.Fail(405, "")},
			{
				Method: "GET", Path: regexp.MustCompile("/manifests/1"), Times: -1,
				Effect: registrytest.Header("Docker-Content-Digest", wrong),
			},
		}, []string{"sends a wrong manifest", wrong}},
		"layer of other content": {
			[]registrytest.Fault{{
				Path: regexp.MustCompile("/blobs/" + h.String()), Times: -1,
				Effect: registrytest.Corrupt(),
			}},
			[]string{"wrong content", h.String()},
		},
		"layer of other length": {
			[]registrytest.Fault{{
				Path: regexp.MustCompile("/blobs/" + h.String()), Times: -1,
				Effect: registrytest.LieAboutLength(5),
			}},
			[]string{"wrong size", h.String()},
		},
		"layer is lost": {
			[]registrytest.Fault{{
				Path: regexp.MustCompile("/blobs/" + h.String()), Times: -1,
				Effect: registrytest.FailWith(404, "", `{"errors":[{"code":"BLOB_UNKNOWN","message":"gone"}]}`),
			}},
			[]string{"has lost this blob", h.String()},
		},
		"huge manifest": {[]registrytest.Fault{{
			Method: "GET", Path: regexp.MustCompile("/manifests/"), Times: -1,
			Effect: func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter,
					_ *http.Request,
				) {
					_, _ = w.Write(make([]byte, 5<<20))
				})
			},
		}}, []string{"more than 4194304 bytes"}},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, registrytest.Options{})
			u.pushImage("k8s/app:1", img)
			u.AddFaults(c.faults...)
			o := u.options(newStore(t))
			l, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/app:1"), o)
			if err == nil {
				_, err = fetch.All(t.Context(), l, o)
			}
			wantError(t, err, append(c.says, "image registry.k8s.io/app:1", u.Host)...)
			u.ClearFaults()
			// What was kept of it does no harm.
			if l, err = fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/app:1"),
				o); err != nil {
				t.Fatal(err)
			}
			if _, err := fetch.All(t.Context(), l, o); err != nil {
				t.Fatal(err)
			}
			wantImage(t, o.Store, img)
		})
	}
}

func TestImageSurvivesTransport(t *testing.T) {
	t.Parallel()
	img, err := random.Image(big, 1)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.Config(img, v1.Config{}); err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]registrytest.Options{
		"plain": {},
		"token": {TLS: true, Auth: registrytest.AuthToken},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, o)
			u.pushImage("hub/some/app:1", img)
			u.AddFaults(
				registrytest.Fault{Path: regexp.MustCompile("^/v2/$"), Effect: registrytest.Fail(503, "")},
				registrytest.Fault{
					Method: "GET", Path: regexp.MustCompile("/manifests/"),
					Effect: registrytest.Fail(500, ""),
				},
				registrytest.Fault{
					Path: regexp.MustCompile("/blobs/"), Times: 2,
					Effect: registrytest.CutResponse(5 << 20),
				},
				registrytest.Fault{Path: regexp.MustCompile("/blobs/"), Effect: registrytest.Fail(429, "0")},
			)
			fo := u.options(newStore(t))
			l, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "some/app:1"), fo)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fetch.All(t.Context(), l, fo); err != nil {
				t.Fatal(err)
			}
			wantImage(t, fo.Store, img)
		})
	}
}

// TestSharedBlob has a layer in two repositories, one of which lost it.
func TestSharedBlob(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	u.pushImage("k8s/a:1", img)
	u.pushImage("k8s/b:1", img)
	u.AddFaults(registrytest.Fault{
		Path: regexp.MustCompile("/k8s/a/blobs/"), Skip: 1, Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	u.ForgetRequests()
	o := u.options(newStore(t))
	l, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/a:1", "registry.k8s.io/b:1"),
		o)
	if err != nil {
		t.Fatal(err)
	}
	items, err := fetch.All(t.Context(), l, o)
	if err != nil || len(items) != 2 {
		t.Errorf("%v, %v", items, err)
	}
}

func TestAllUnreachable(t *testing.T) {
	t.Parallel()
	o := options(newStore(t))
	o.Sources = []sources.Source{{
		Host: "registry.k8s.io", Mirrors: sources.Mirrors{"127.0.0.1:1/k8s"},
		MirrorOnly: true, PlainHTTP: true,
	}}
	_, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/a:1"), o)
	wantError(t, err, "registry.k8s.io (mirror 127.0.0.1:1/k8s)", "refused")
	var failed *fetch.Errors
	if !errors.As(err, &failed) {
		t.Errorf("%T", err)
	}
}

// TestImageOnThisMachine: as in docker, a registry on this machine needs no leave for plain HTTP. Settings for TLS
// rule it out.
func TestImageOnThisMachine(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	u.pushImage("team/app:1", platformImage(t, "linux/amd64"))
	b := &manifest.Bundle{Platforms: []string{"linux/amd64"}, Images: []manifest.Image{{Name: u.Host + "/team/app:1"}}}
	l, err := fetch.Resolve(t.Context(), b, options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch.All(t.Context(), l, options(newStore(t))); err != nil {
		t.Error(err)
	}
	strict := options(newStore(t))
	secure := newUpstream(t, registrytest.Options{TLS: true})
	strict.Sources = []sources.Source{{Host: u.Host, CA: secure.CAFile}}
	_, err = fetch.Resolve(t.Context(), b, strict)
	wantError(t, err, "plainHTTP: true")
}
