//go:build linux

package scale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// A catalogue collects items as real ones are: images for two platforms of a few layers, and files.
type catalogue struct {
	testing.TB
	cache *cache.Cache
	index bundle.Index
	layer int64 // bytes of a layer or file
	blobs int
}

func (c *catalogue) put(mediaType string, r io.Reader) ocispec.Descriptor {
	c.Helper()
	c.blobs++
	w, _, err := c.cache.Begin(c.Context(), fmt.Sprint(c.blobs))
	if err != nil {
		c.Fatal(err)
	}
	if _, err := io.CopyBuffer(w, r, make([]byte, mib)); err != nil {
		c.Fatal(err)
	}
	d, err := w.Commit(c.Context(), -1, "")
	if err != nil {
		c.Fatal(err)
	}
	d.MediaType = mediaType
	return d
}

func (c *catalogue) content(mediaType string) ocispec.Descriptor {
	c.Helper()
	return c.put(mediaType, &stream{source: source{seed: uint64(c.blobs), size: c.layer, random: true}})
}

func (c *catalogue) json(mediaType string, v any) ocispec.Descriptor {
	c.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		c.Fatal(err)
	}
	return c.put(mediaType, bytes.NewReader(data))
}

// image adds an index of two platforms, each with a configuration of 8 KiB and five layers, and as attestations that
// were not chosen: as large as such manifests are.
func (c *catalogue) image(n int) {
	c.Helper()
	it := bundle.Item{Kind: bundle.KindImage, Ref: fmt.Sprintf("docker.io/library/app-%d:1.29", n)}
	var children []ocispec.Descriptor
	for _, arch := range []string{"amd64", "arm64"} {
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		m.Config = c.json(ocispec.MediaTypeImageConfig, map[string]string{
			"architecture": arch,
			"history":      fmt.Sprintf("%08192d", c.blobs),
		})
		for range 5 {
			m.Layers = append(m.Layers, c.content(ocispec.MediaTypeImageLayerGzip))
		}
		d := c.json(ocispec.MediaTypeImageManifest, m)
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		absent := d
		absent.Digest = digest.FromString(string(d.Digest))
		absent.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
		absent.Annotations = map[string]string{
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": string(d.Digest),
		}
		it.Absent = append(it.Absent, absent.Digest)
		children = append(children, d, absent)
	}
	it.Descriptor = c.json(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: children,
	})
	c.index.Items = append(c.index.Items, it)
}

func (c *catalogue) file(n int) {
	c.Helper()
	config := c.json(bundle.MediaTypeEmpty, struct{}{})
	d := c.json(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: bundle.ArtifactTypeFile,
		Config:       config, Layers: []ocispec.Descriptor{c.content(bundle.MediaTypeFileContent)},
	})
	d.ArtifactType = bundle.ArtifactTypeFile
	c.index.Items = append(c.index.Items, bundle.Item{
		Kind: bundle.KindFile, Ref: fmt.Sprintf("https://files.example/release/v1.34.3/bin/linux/amd64/file-%d", n),
		Descriptor: d,
	})
}

// bundleOf writes a bundle of 2,000 blobs with layers of that many bytes, and returns its path and size.
func bundleOf(t testing.TB, layer int64) (path string, size int64) {
	t.Helper()
	dir := t.TempDir()
	cache, err := cache.Open(filepath.Join(dir, "cache"), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	c := &catalogue{TB: t, cache: cache, layer: layer, index: bundle.Index{
		Name: "scale", Version: "1",
		Platforms: []string{"linux/amd64", "linux/arm64"},
	}}
	for n := range 120 {
		c.image(n)
	}
	for n := range 100 {
		c.file(n)
	}
	path = filepath.Join(dir, "x.kkb")
	sum, err := bundle.Create(t.Context(), path, cache, c.index, bundle.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d items, %d blobs, %d MiB", len(c.index.Items), sum.Blobs, sum.Size/mib)
	return path, sum.Size
}

// TestInspect holds inspect to what it may take more than version: 16 MiB. That it takes at most 20 ms more depends on
// the machine, so it is only looked at in the large run.
func TestInspect(t *testing.T) {
	layer := int64(70_000) // what has frames of its own
	if big {
		layer = 10 * gib / 1300
	}
	path, size := bundleOf(t, layer)
	const rounds = 20
	version, inspect := repeat(t, rounds, program(t), "version"), repeat(t, rounds, program(t), "inspect", "--json",
		path)
	t.Logf("version: %v, %d MiB; inspect: %v, %d MiB", version.Wall, version.Peak/mib, inspect.Wall, inspect.Peak/mib)
	if more := inspect.Peak - version.Peak; more > 16*mib {
		t.Errorf("inspect takes %d MiB more than version; at most 16 are allowed", more/mib)
	}
	if read := inspect.Read - version.Read; read > 4*mib {
		t.Errorf("inspect reads %d bytes of a bundle of %d", read, size)
	}
	if more := inspect.Wall - version.Wall; big && more > 20*time.Millisecond {
		t.Errorf("inspect takes %v more than version; at most 20 ms are allowed", more)
	}
}

// repeat runs a command that many times and returns the median of each figure.
func repeat(t testing.TB, rounds int, args ...string) usage {
	t.Helper()
	all := make([]usage, rounds)
	for i := range all {
		all[i] = must(t, "", args...)
	}
	median := all[0]
	slices.SortFunc(all, func(a, b usage) int { return int(a.Wall - b.Wall) })
	median.Wall = all[rounds/2].Wall
	slices.SortFunc(all, func(a, b usage) int { return int(a.CPU - b.CPU) })
	median.CPU = all[rounds/2].CPU
	slices.SortFunc(all, func(a, b usage) int { return int(a.Peak - b.Peak) })
	median.Peak = all[rounds/2].Peak
	return median
}
