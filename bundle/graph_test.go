package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A memorySource has small blobs.
type memorySource struct {
	blobs map[format.Sum][]byte
	enc   *format.Encoder
}

func (m *memorySource) Stat(_ context.Context, d digest.Digest) (int64, bool, error) {
	s, err := format.ParseDigest(d)
	data, ok := m.blobs[s]
	return int64(len(data)), ok, err
}

func (m *memorySource) ReadBlob(_ context.Context, d digest.Digest, _ int64) ([]byte, error) {
	s, err := format.ParseDigest(d)
	return m.blobs[s], err
}

func (m *memorySource) Encoding() *format.Encoder { return m.enc }

func (m *memorySource) Frames(context.Context, digest.Digest) (format.Frames, error) {
	return nil, errors.New("there is no large blob")
}

func (m *memorySource) add(t testing.TB, data []byte, mediaType string) ocispec.Descriptor {
	t.Helper()
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	s, err := format.ParseDigest(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	m.blobs[s] = data
	return d
}

// largeGraph makes images of 60 layers each, ten of which all share, the others some.
func largeGraph(t testing.TB, images, layers int) (*memorySource, Index) {
	t.Helper()
	enc, err := format.NewEncoder(LevelFast, 2)
	if err != nil {
		t.Fatal(err)
	}
	m := &memorySource{blobs: map[format.Sum][]byte{}, enc: enc}
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
		x.Items = append(x.Items, Item{
			Kind: KindImage, Ref: ref, Name: ref,
			Descriptor: m.add(t, data, ocispec.MediaTypeImageManifest),
		})
	}
	return m, x
}

// A watched source, which is the writer as well, looks now and then at how much memory is in use. Garbage does not
// count: how much there is of it says when the collector ran.
type watched struct {
	*memorySource
	calls, looks atomic.Int64
	mu           sync.Mutex
	most         int64
}

func (w *watched) ReadBlob(ctx context.Context, d digest.Digest, size int64) ([]byte, error) {
	w.look()
	return w.memorySource.ReadBlob(ctx, d, size)
}

func (w *watched) Write(p []byte) (int, error) {
	w.look()
	return len(p), nil
}

func (w *watched) look() {
	const every = 2000 // calls: 30 or 40 looks in all
	if w.calls.Add(1)%every != 0 {
		return
	}
	w.looks.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, inUse())
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLargeGraph writes 2,000 images with 20,000 layers: no step may be quadratic, and memory is bounded.
func TestLargeGraph(t *testing.T) {
	src, x := largeGraph(t, 2000, 20_000)
	before, w := inUse(), &watched{memorySource: src}
	sum, err := Write(t.Context(), w, w, x, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Blobs != len(src.blobs) {
		t.Errorf("%d blobs, want %d", sum.Blobs, len(src.blobs))
	}
	grown := w.most - before
	t.Logf("%d blobs, %d MiB more were in use, %d looks after %d calls", sum.Blobs, grown>>20, w.looks.Load(),
		w.calls.Load())
	if w.looks.Load() < 5 || grown > 50<<20 {
		t.Errorf("%d MiB more were in use", grown>>20)
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
