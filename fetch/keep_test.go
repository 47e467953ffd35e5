package fetch_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestKeepImages adds an image to a locked manifest: the other tags keep their digests, though upstream has moved
// one, and are not asked for.
func TestKeepImages(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	for _, name := range []string{"k8s/app:1", "k8s/gone:1", "k8s/new:1"} {
		u.pushImage(name, platformImage(t, "linux/amd64"))
	}
	store := newStore(t)
	old, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/app:1",
		"registry.k8s.io/gone:1"), u.options(store))
	if err != nil {
		t.Fatal(err)
	}
	u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
	more := images([]string{"linux/amd64"}, "registry.k8s.io/app:1", "registry.k8s.io/new:1")
	o := u.options(store)
	o.Keep = old
	u.ForgetRequests()
	l, err := fetch.Resolve(t.Context(), more, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 2 || l.Items[0].Digest != old.Items[0].Digest {
		t.Errorf("have %+v, want the digest of %+v", l.Items, old.Items[0])
	}
	if n := u.Count("", "^/v2/k8s/app/manifests/1$"); n != 0 {
		t.Errorf("the tag of a pinned image was asked for %d times", n)
	}
	if n := u.Count("", "^/v2/k8s/new/manifests/1$"); n == 0 {
		t.Error("the tag of the new image was not asked for")
	}
	o.Keep = nil
	if l, err = fetch.Resolve(t.Context(), more, o); err != nil || l.Items[0].Digest == old.Items[0].Digest {
		t.Errorf("without the lock the tag did not move: %+v, %v", l, err)
	}
}

// TestKeepRemovedImage follows the tag where upstream has removed the pinned manifest.
func TestKeepRemovedImage(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
	b := images([]string{"linux/amd64"}, "registry.k8s.io/app:1")
	old, err := fetch.Resolve(t.Context(), b, u.options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(u.ref("k8s/app@"+old.Items[0].Digest.String()), u.remote()...); err != nil {
		t.Fatal(err)
	}
	u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
	o := u.options(newStore(t)) // without the old manifest
	o.Keep = old
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil || l.Items[0].Digest == old.Items[0].Digest {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestKeepFilesAndCharts adds a file to a locked manifest: the digest of a replaced file and the version of a chart
// stay, and upstream is not asked for them. A sha256 in the manifest counts.
func TestKeepFilesAndCharts(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	helmRepo(t, s, true, "1.0.0")
	s.put("/a", []byte("one"))
	s.put("/b", []byte("b"))
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Charts: []manifest.Chart{{Name: "app", Repo: s.url + "/repo", Version: "^1"}},
		Files:  []manifest.File{{Name: "a", URL: s.url + "/a"}},
	}
	o := options(newStore(t), s)
	old, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	helmRepo(t, s, true, "1.0.0", "1.1.0")
	s.put("/a", []byte("two"))
	b.Files = append(b.Files, manifest.File{Name: "b", URL: s.url + "/b"})
	asked := s.count("GET", "/a") + s.count("GET", "/repo/index.yaml")
	o.Keep = old
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil || len(l.Items) != 3 {
		t.Fatalf("%+v, %v", l, err)
	}
	if diff := cmp.Diff(l.Items[:2], old.Items); diff != "" {
		t.Errorf("pins of unchanged items (-have +want):\n%s", diff)
	}
	if n := s.count("GET", "/a") + s.count("GET", "/repo/index.yaml"); n != asked {
		t.Errorf("upstream was asked for pinned items %d times", n-asked)
	}
	b.Charts[0].Version = "^1.1"
	b.Files[0].SHA256 = manifest.Sums{scalar.AllPlatforms: digestOf([]byte("two")).Encoded()}
	l, err = fetch.Resolve(t.Context(), b, o)
	if err != nil || l.Items[0].Version != "1.1.0" || l.Items[1].Digest != digestOf([]byte("two")) ||
		l.Items[1].Verified != manifest.VerifiedManifest {
		t.Errorf("changed items: %+v, %v", l, err)
	}
}

// TestKeepChecksums asks a changed checksum address, and a file without one again; the same address is not asked.
func TestKeepChecksums(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	s.put("/a", []byte("one"))
	for _, name := range []string{"/old.sha256", "/new.sha256"} {
		s.put(name, []byte(digestOf([]byte("one")).Encoded()+"  a\n"))
	}
	file := manifest.File{Name: "a", URL: s.url + "/a", Checksums: s.url + "/old.sha256"}
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Files: []manifest.File{file},
	}
	o := options(newStore(t), s)
	old, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Keep = old
	asked := s.count("GET", "/old.sha256")
	if _, err := fetch.Resolve(t.Context(), b, o); err != nil || s.count("GET", "/old.sha256") != asked {
		t.Errorf("an unchanged address was asked again, or %v", err)
	}
	s.put("/new.sha256", []byte(digestOf([]byte("another")).Encoded()+"  a\n"))
	b.Files[0].Checksums = s.url + "/new.sha256"
	if l, err := fetch.Resolve(t.Context(), b, o); err == nil && l.Items[0].Digest == old.Items[0].Digest {
		t.Errorf("the new address was not asked: %+v", l.Items[0])
	}
	b.Files[0].Checksums = ""
	if l, err := fetch.Resolve(t.Context(), b, o); err != nil || l.Items[0].Verified != manifest.VerifiedFirstUse {
		t.Errorf("without checksums: %+v, %v", l, err)
	}
}
