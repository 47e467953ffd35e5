package fetch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestJobHead wants what must come first, the items, and then each blob when it is asked for, and only then.
func TestJobHead(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	known, unknown := noise(1, 5000), noise(2, 6000)
	pins := []manifest.Pin{filePin(s.put("/known", known), known), filePin(s.put("/unknown", unknown), unknown)}
	pins[1].Size = 0 // as in a lock that nobody told the size
	store := newStore(t)
	j, err := fetch.Prepare(t.Context(), lock(pins...), options(store, s))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	items, err := j.Head(t.Context())
	if err != nil || len(items) != 2 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if later := j.Later(); len(later) != 1 || later[0].Digest != pins[0].Digest || later[0].Size != pins[0].Size {
		t.Errorf("later: %v", later)
	}
	if s.count("", "/known") != 0 || s.count("GET", "/unknown") != 1 {
		t.Errorf("asked for %v", s.seen())
	}
	for range 2 {
		if err := j.Fetch(t.Context(), pins[0].Digest); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Fetch(t.Context(), pins[1].Digest); err != nil {
		t.Error(err)
	}
	if s.count("GET", "/known") != 1 {
		t.Errorf("asked for %v", s.seen())
	}
	// The same items as those of a run that had everything first.
	all, err := fetch.All(t.Context(), lock(pins...), options(newStore(t), s))
	if err != nil || !slices.EqualFunc(items, all,
		func(a, b fetch.Item) bool { return a.Descriptor.Digest == b.Descriptor.Digest }) {
		t.Errorf("items %v, want %v, %v", items, all, err)
	}
}

// TestJobFetchFails names every item that needs the blob.
func TestJobFetchFails(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	data := noise(1, 5000)
	pins := []manifest.Pin{filePin(s.put("/a", data), noise(9, 5000)), filePin(s.url+"/b", noise(9, 5000))}
	j, err := fetch.Prepare(t.Context(), lock(pins...), options(newStore(t), s))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = j.Fetch(t.Context(), pins[0].Digest)
	var failed *fetch.Errors
	if !errors.As(err, &failed) || len(failed.Failed) != 2 || failed.Items != 2 {
		t.Errorf("got %v", err)
	}
	wantError(t, err, "/a", "/b", "404")
}

// TestJobResumes does not count what an earlier run left as a download.
func TestJobResumes(t *testing.T) {
	t.Parallel()
	const piece = 4 << 20
	s := newSite(t, false)
	data := noise(1, 2*piece+5)
	pin := filePin(s.put("/f", data), data)
	store := newStore(t)
	w, _, err := store.Begin(t.Context(), pin.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data[:piece+100]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := estimate(t, lock(pin), options(store, s))
	if want := (fetch.Estimation{Download: piece + 5, Resumed: piece, Blobs: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var last fetch.Event
	o := options(store, s)
	o.Jobs, o.Progress = 1, func(e fetch.Event) { last = e }
	if _, err := fetch.All(t.Context(), lock(pin), o); err != nil || last.Done != piece+5 || last.Total != last.Done ||
		last.Cached != piece {
		t.Errorf("%+v, %v", last, err)
	}
}

// A catalogue is a Store with manifests and nothing else.
type catalogue map[digest.Digest][]byte

func (c catalogue) Stat(_ context.Context, d digest.Digest) (int64, bool, error) {
	data, ok := c[d]
	return int64(len(data)), ok, nil
}

func (c catalogue) Open(_ context.Context, d digest.Digest) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(c[d])), nil
}

func (c catalogue) Begin(context.Context, string) (fetch.BlobWriter, int64, error) {
	return nil, 0, errors.New("nothing is to be written")
}

// largeLock has images that share layers: ten of them all, the others some.
func largeLock(images, layers int) (catalogue, *manifest.Lock) {
	const each, common = 60, 10
	layer := func(n int) ocispec.Descriptor {
		return ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayerGzip,
			Digest:    digest.FromString(fmt.Sprint("layer ", n)), Size: int64(1000 + n),
		}
	}
	c, l := catalogue{}, &manifest.Lock{}
	for i := range images {
		m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
		m.SchemaVersion = 2
		m.Config = ocispec.Descriptor{
			MediaType: "application/vnd.example.config",
			Digest:    digest.FromString(fmt.Sprint("config ", i)), Size: 500,
		}
		for n := range each {
			k := n
			if n >= common {
				k = common + (i*(each-common)/5+n*7919)%(layers-common)
			}
			m.Layers = append(m.Layers, layer(k))
		}
		data, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		d := digest.FromBytes(data)
		c[d] = data
		l.Items = append(l.Items, manifest.Pin{
			Kind: manifest.ItemImage, Ref: fmt.Sprintf("registry.example/team/image-%d:1", i), Digest: d,
			Size:      int64(len(data)),
			MediaType: ocispec.MediaTypeImageManifest,
		})
	}
	return c, l
}

// TestLargeLock plans 2,000 images with 20,000 layers: no step may be quadratic, and memory is bounded.
func TestLargeLock(t *testing.T) {
	c, l := largeLock(2000, 20_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	j, err := fetch.Prepare(t.Context(), l, fetch.Options{Store: c, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if e := j.Estimate(); e.Blobs < 15_000 || e.Unknown != 0 {
		t.Errorf("%+v", e)
	}
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 64<<20 {
		t.Errorf("the plan has %d MiB in memory", n>>20)
	} else {
		t.Logf("the plan has %d MiB in memory", n>>20)
	}
	runtime.KeepAlive(j)
}

func BenchmarkPrepare(b *testing.B) {
	for _, images := range []int{500, 2000} {
		b.Run(fmt.Sprint(images), func(b *testing.B) {
			c, l := largeLock(images, images*10)
			for b.Loop() {
				j, err := fetch.Prepare(b.Context(), l, fetch.Options{Store: c, Platforms: []string{"linux/amd64"}})
				if err != nil {
					b.Fatal(err)
				}
				j.Close()
			}
		})
	}
}
