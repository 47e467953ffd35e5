package bundle_test

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// largeGraph puts images that share layers of a few bytes into scratch space, which need not sync them.
func largeGraph(t testing.TB, images, layers int) (*bundle.Scratch, bundle.Index) {
	t.Helper()
	s, err := bundle.OpenScratch(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	const each, common = 60, 10
	store := func(data []byte, mediaType string) ocispec.Descriptor {
		if err := put(t.Context(), s.Cache, data); err != nil {
			t.Fatal(err)
		}
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	}
	all := make([]ocispec.Descriptor, layers)
	for i := range all {
		all[i] = store(fmt.Appendf(nil, "layer %d", i), ocispec.MediaTypeImageLayerGzip)
	}
	x := bundle.Index{Name: "large", Version: "1"}
	for i := range images {
		m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
		m.SchemaVersion = 2
		m.Config = store(fmt.Appendf(nil, `{"image":%d}`, i), ocispec.MediaTypeImageConfig)
		for n := range each {
			k := n
			if n >= common {
				k = common + (i*(each-common)/5+n*7919)%(layers-common)
			}
			m.Layers = append(m.Layers, all[k])
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		ref := fmt.Sprintf("registry.example/team/image-%d:1", i)
		x.Items = append(x.Items, bundle.Item{Kind: bundle.KindImage, Ref: ref, Name: ref, Descriptor: store(data, ocispec.MediaTypeImageManifest)})
	}
	return s, x
}

// TestLargeGraph writes 2,000 images with 20,000 layers. Twice as many take twice as long; a quadratic step would show as
// four times, or never end.
func TestLargeGraph(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s, x := largeGraph(t, 2000, 20_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	sum, err := bundle.Write(t.Context(), io.Discard, s, x, bundle.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if sum.Blobs < 20_000 {
		t.Errorf("%d blobs", sum.Blobs)
	}
	grown := int64(after.HeapSys) - int64(before.HeapSys)
	t.Logf("%d blobs in %s, the heap grew by %d MiB", sum.Blobs, took, grown>>20)
	if grown > 200<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// BenchmarkEstimate plans bundles of many images.
func BenchmarkEstimate(b *testing.B) {
	for _, images := range []int{500, 2000} {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			s, x := largeGraph(b, images, images*10)
			for b.Loop() {
				if _, err := bundle.Estimate(b.Context(), s, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
