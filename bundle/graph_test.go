package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A memorySource has small blobs.
type memorySource struct {
	blobs map[sum][]byte
	enc   *encoder
}

func (m *memorySource) lookup(_ context.Context, s sum) (int64, bool, error) {
	data, ok := m.blobs[s]
	return int64(len(data)), ok, nil
}

func (m *memorySource) read(_ context.Context, s sum, _ int64) ([]byte, error) {
	return m.blobs[s], nil
}

func (m *memorySource) encoding() *encoder { return m.enc }

func (m *memorySource) open(context.Context, sum) (frames, error) {
	return nil, errors.New("there is no large blob")
}

func (m *memorySource) add(t testing.TB, data []byte, mediaType string) ocispec.Descriptor {
	t.Helper()
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	s, err := parseDigest(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	m.blobs[s] = data
	return d
}

// largeGraph makes images of 60 layers each, ten of which all share, the others some.
func largeGraph(t testing.TB, images, layers int) (*memorySource, Index) {
	t.Helper()
	enc, err := newEncoder(LevelFast, 2)
	if err != nil {
		t.Fatal(err)
	}
	m := &memorySource{blobs: map[sum][]byte{}, enc: enc}
	const each, common = 60, 10
	all := make([]ocispec.Descriptor, layers)
	for i := range all {
		all[i] = m.add(t, fmt.Appendf(nil, "layer %d", i), ocispec.MediaTypeImageLayerGzip)
	}
	x := Index{Name: "large", Version: "1"}
	for i := range images {
		doc := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
		doc.SchemaVersion = 2
		doc.Config = m.add(t, fmt.Appendf(nil, `{"image":%d}`, i), ocispec.MediaTypeImageConfig)
		for n := range each {
			k := n
			if n >= common {
				k = common + (i*(each-common)/5+n*7919)%(layers-common)
			}
			doc.Layers = append(doc.Layers, all[k])
		}
		data, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		ref := fmt.Sprintf("registry.example/team/image-%d:1", i)
		x.Items = append(x.Items, Item{Kind: KindImage, Ref: ref, Name: ref, Descriptor: m.add(t, data, ocispec.MediaTypeImageManifest)})
	}
	return m, x
}

// TestLargeGraph writes 2,000 images with 20,000 layers: no step may be quadratic, and memory is bounded.
func TestLargeGraph(t *testing.T) {
	src, x := largeGraph(t, 2000, 20_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sum, err := Write(t.Context(), io.Discard, src, x, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if sum.Blobs != len(src.blobs) {
		t.Errorf("%d blobs, want %d", sum.Blobs, len(src.blobs))
	}
	grown := int64(after.HeapSys) - int64(before.HeapSys)
	t.Logf("%d blobs, the heap grew by %d MiB", sum.Blobs, grown>>20)
	if grown > 200<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// BenchmarkEstimate plans bundles of many images: four times as many may take four times as long.
func BenchmarkEstimate(b *testing.B) {
	for _, images := range []int{500, 2000} {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			src, x := largeGraph(b, images, images*10)
			for b.Loop() {
				if _, err := Estimate(b.Context(), src, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
