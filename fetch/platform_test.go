package fetch_test

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// indexOf makes an index of one image for each platform; a platform named twice is two images.
func indexOf(t testing.TB, platforms ...string) (v1.ImageIndex, []digest.Digest) {
	var idx v1.ImageIndex = empty.Index
	var children []digest.Digest
	for _, p := range platforms {
		img := platformImage(t, p)
		idx = add(t, idx, img, p)
		children = append(children, digestString(t, img))
	}
	return idx, children
}

// The best variant of what is wanted is taken, and nothing else.
func TestVariants(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	for i, c := range []struct {
		there, wanted string
		taken         string // of there, in its order; "" is none
	}{
		{"linux/arm/v6 linux/arm/v7", "linux/arm", "linux/arm/v7"},
		{"linux/arm/v5 linux/arm/v6 linux/amd64", "linux/arm/v7", "linux/arm/v6"},
		{"linux/arm/v7 linux/amd64", "linux/arm/v6", ""},
		{"linux/arm/v6 linux/arm/v7", "linux/arm/v6 linux/arm/v7", "linux/arm/v6 linux/arm/v7"},
		{"linux/arm64/v8 linux/arm/v7", "linux/arm64", "linux/arm64/v8"},
		{"linux/arm64 linux/arm/v7", "linux/arm64/v8", "linux/arm64"},
		{"linux/arm/v7", "linux/arm64", ""},
		{"linux/amd64 linux/amd64/v2 linux/amd64/v3", "linux/amd64", "linux/amd64"},
		{"linux/amd64 linux/amd64/v2 linux/amd64/v3", "linux/amd64/v2", "linux/amd64/v2"},
		{"linux/amd64 linux/amd64/v2", "linux/amd64/v4", "linux/amd64/v2"},
		{"linux/amd64/v2", "linux/amd64", ""},
		{"linux/386", "linux/amd64", ""},
		{"linux/riscv64/rva23u64 linux/amd64", "linux/amd64", "linux/amd64"},
	} {
		what := c.there + " for " + c.wanted
		path := "app" + string(rune('a'+i))
		there := strings.Fields(c.there)
		idx, children := indexOf(t, there...)
		u.pushIndex("k8s/"+path+":1", idx)
		o := u.options(newStore(t))
		o.Platforms = nil
		l, err := fetch.Resolve(t.Context(), images(strings.Fields(c.wanted), "registry.k8s.io/"+path+":1"), o)
		if c.taken == "" {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		items, err := fetch.All(t.Context(), l, o)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for j, p := range there {
			if absent, taken := slices.Contains(items[0].Absent, children[j]),
				slices.Contains(strings.Fields(c.taken), p); absent == taken {
				t.Errorf("%s: %s: taken is %t", what, p, !absent)
			}
		}
	}
}

// Every Windows of a version is for hosts of that version, so all are taken.
func TestWindows(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	var idx v1.ImageIndex = empty.Index
	for _, version := range []string{"10.0.17763.1", "10.0.20348.1"} {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: platformImage(t, "windows/amd64"),
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{
					OS: "windows", Architecture: "amd64", OSVersion: version,
					OSFeatures: []string{"win32k"},
				},
			},
		})
	}
	idx = add(t, idx, platformImage(t, "linux/amd64"), "linux/amd64")
	u.pushIndex("k8s/win:1", idx)
	o := u.options(newStore(t))
	o.Platforms = nil
	items, err := fetch.All(t.Context(), resolve(t, images([]string{"windows/amd64"}, "registry.k8s.io/win:1"), o), o)
	if err != nil || len(items) != 1 || len(items[0].Absent) != 1 {
		t.Errorf("%+v, %v", items, err)
	}
}

// One manifest may be for several platforms; then it is there, not absent.
func TestSharedChild(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	img := platformImage(t, "linux/arm/v6")
	u.pushIndex("k8s/app:1", add(t, add(t, v1.ImageIndex(empty.Index), img, "linux/arm/v6"), img, "linux/arm/v7"))
	o := u.options(newStore(t))
	o.Platforms = nil
	items, err := fetch.All(t.Context(), resolve(t, images([]string{"linux/arm/v7"}, "registry.k8s.io/app:1"), o), o)
	if err != nil || len(items[0].Absent) != 0 {
		t.Errorf("%+v, %v", items, err)
	}
}

func TestOwnPlatforms(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	idx, _ := indexOf(t, "linux/amd64", "linux/arm64", "linux/s390x")
	u.pushIndex("k8s/app:1", idx)
	u.pushIndex("k8s/other:1", idx)
	s := newSite(t, false)
	for _, arch := range []string{"amd64", "arm64", "s390x"} {
		s.put("/f_"+arch, []byte(arch))
	}
	b := images([]string{"linux/amd64", "linux/arm64"}, "registry.k8s.io/app:1", "registry.k8s.io/other:1")
	b.Images[1].Platforms = []string{"linux/s390x"}
	b.Files = []manifest.File{{Name: "f", URL: s.url + "/f_{arch}", Platforms: []string{"linux/s390x", "linux/x86_64"}}}
	o := u.options(newStore(t))
	o.Sources = append(o.Sources, options(nil, s).Sources...)
	var got []string
	for _, p := range resolve(t, b, o).Items {
		got = append(got, p.Ref[strings.LastIndexByte(p.Ref, '/')+1:]+" "+p.Platform+strings.Join(p.Platforms, ","))
	}
	if want := []string{
		"f_amd64 linux/amd64", "f_s390x linux/s390x", "app:1 linux/amd64,linux/arm64",
		"other:1 linux/s390x",
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// What an image lacks under platformPolicy: warn is in the lock and in the item.
func TestLacks(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	idx, _ := indexOf(t, "linux/amd64")
	u.pushIndex("k8s/app:1", idx)
	u.pushImage("k8s/single:1", platformImage(t, "linux/arm64"))
	b := images([]string{"linux/s390x", "linux/amd64", "linux/arm64"}, "registry.k8s.io/app:1",
		"registry.k8s.io/single:1")
	b.PlatformPolicy = manifest.PolicyWarn
	o := u.options(newStore(t))
	l := resolve(t, b, o)
	items, err := fetch.All(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"linux/arm64,linux/s390x", "linux/amd64,linux/s390x"} {
		if got := strings.Join(l.Items[i].Lacks, ","); got != want ||
			items[i].Descriptor.Annotations[bundle.AnnotationLacks] != want {
			t.Errorf("%s: pin %s, item %v", l.Items[i].Ref, got, items[i].Descriptor.Annotations)
		}
	}
}
