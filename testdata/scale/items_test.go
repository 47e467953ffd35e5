//go:build linux

package scale

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// manyItems writes a bundle of n small items and returns its path. The items are files with a repository each,
// versions of one image, and signatures of these versions.
func manyItems(t *testing.T, n int) (path string) {
	t.Helper()
	dir := t.TempDir()
	opened, err := cache.Open(filepath.Join(dir, "cache"), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	c := &catalogue{TB: t, cache: opened, layer: 100, index: bundle.Index{
		Name: "items", Version: "1",
		Platforms: []string{"linux/amd64"},
	}}
	config := c.json(bundle.MediaTypeEmpty, struct{}{})
	const image = "docker.io/library/app"
	for i := range n {
		m := ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			ArtifactType: bundle.ArtifactTypeFile,
			Config:       config, Layers: []ocispec.Descriptor{c.content(bundle.MediaTypeFileContent)},
		}
		it := bundle.Item{Kind: bundle.KindFile, Ref: fmt.Sprintf("https://files.example/release/%d/file", i)}
		switch last := len(c.index.Items) - 1; i % 8 {
		case 6:
			m.ArtifactType = ""
			it.Kind, it.Ref = bundle.KindImage, fmt.Sprintf("%s:%d", image, i)
		case 7:
			subject := c.index.Items[last].Descriptor
			m.ArtifactType, m.Subject = "application/vnd.example.signature", &subject
			it.Kind, it.Name = bundle.KindReferrer, image
		}
		it.Descriptor = c.json(ocispec.MediaTypeImageManifest, m)
		it.Descriptor.ArtifactType = m.ArtifactType
		if it.Kind == bundle.KindReferrer {
			it.Ref = image + "@" + it.Descriptor.Digest.String()
		}
		c.index.Items = append(c.index.Items, it)
	}
	path = filepath.Join(dir, "x.kkb")
	if _, err := bundle.Create(t.Context(), path, opened, c.index, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestManyItems compares the bytes that commands read and write for a number of items and for four times as many:
// they may grow with the number, and not with its square. It logs the processor time, too, which depends on the
// machine and is not compared; bundle/transfer and registry have tests of walks that took a time that grew with the
// square. KKBUNDLE_BIG=1 has 3,000 and 12,000 items.
func TestManyItems(t *testing.T) {
	const times, most = 4, 5
	few := 500
	if big {
		few = 3000
	}
	less, more := usageOf(t, few), usageOf(t, times*few)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		a, b := less[name], more[name]
		t.Logf("%s: %.2f MB and %s with %d items, %.2f MB and %s with %d", name, mb(a), a.CPU, few, mb(b), b.CPU,
			times*few)
		if b.Read+b.Wrote > most*(a.Read+a.Wrote) {
			t.Errorf("%s: %d items take more than %d times the bytes that %d take", name, times*few, most, few)
		}
	}
}

func mb(u usage) float64 { return float64(u.Read+u.Wrote) / 1e6 }

// usageOf returns what each command takes with a bundle of n items.
func usageOf(t *testing.T, n int) map[string]usage {
	t.Helper()
	path := manyItems(t, n)
	s := registrytest.Start(t, registrytest.Options{})
	used := map[string]usage{}
	for name, args := range map[string]string{
		"inspect": "inspect --json " + path,
		"verify":  "verify --quiet " + path,
		"diff":    "diff " + path + " " + path,
		"push":    "push --plain-http --registry " + s.Host + " " + path,
	} {
		u, out := measure(t, "", append([]string{program(t)}, strings.Fields(args)...)...)
		if !u.ok() {
			t.Errorf("%s: %s %.500s", name, u.Status, out)
		}
		used[name] = u
	}
	return used
}
