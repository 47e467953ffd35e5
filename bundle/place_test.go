package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// arrivingLayers have contents of which some compress, and media types of which some are wrong about that.
func arrivingLayers(t *testing.T, r *rand.Rand) *arriving {
	t.Helper()
	var contents [][]byte
	compressed := map[digest.Digest]bool{}
	for range 10 + r.Intn(20) {
		n := 65<<10 + r.Intn(200<<10)
		switch r.Intn(12) {
		case 0:
			n = r.Intn(3 * frameSize)
		case 1, 2:
			n = r.Intn(64 << 10)
		}
		data := bundletest.Random(r.Int63(), n)
		compresses := r.Intn(6) == 0
		if compresses {
			data = bundletest.Text(r.Int63(), n)
		}
		contents = append(contents, data)
		compressed[digest.FromBytes(data)] = compresses == (r.Intn(4) == 0)
	}
	s := arrivingOf(t, contents)
	for i, d := range s.later {
		if compressed[d.Digest] {
			s.later[i].MediaType = ocispec.MediaTypeImageLayerGzip
		}
	}
	return s
}

// create writes the bundle to a file, and compares it.
func (s *arriving) create(t *testing.T, o bundle.IncomingOptions) {
	t.Helper()
	o.Blobs = s.later
	src, err := bundle.NewIncoming(s.scratch.Cache, o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "out.kkb")
	if _, err := bundle.Create(t.Context(), path, src, s.index, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, s.want) {
		t.Errorf("%d bytes, not those of a cached build, which has %d", len(got), len(s.want))
	}
}

// TestPlaces has blobs arrive in any order, some after an interruption or after wrong bytes. The bundle is always the
// same, and many blobs go straight into it.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	straight, large := 0, 0
	t.Run("seeds", func(t *testing.T) {
		for seed := range int64(60) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewSource(seed))
				s := arrivingLayers(t, r)
				seeds := map[digest.Digest]int64{}
				for _, d := range s.later {
					seeds[d.Digest] = r.Int63()
				}
				s.create(t, bundle.IncomingOptions{
					Jobs: 1 + r.Intn(12), Window: r.Int63n(16 << 20),
					Fetch: func(ctx context.Context, d digest.Digest) error {
						if err := trickle(ctx, s.scratch.Cache, s.content[d],
							rand.New(rand.NewSource(seeds[d]))); err != nil {
							return err
						}
						_, ok, err := s.scratch.Stat(ctx, d)
						mu.Lock()
						defer mu.Unlock()
						if len(s.content[d]) > 64<<10 {
							large++
							if !ok {
								straight++
							}
						}
						return err
					},
				})
			})
		}
	})
	if straight < large/5 {
		t.Errorf("%d of %d large blobs went straight into the bundle", straight, large)
	}
}

// trickle writes a blob with pauses; sometimes it starts over, with the same writer or with another.
func trickle(ctx context.Context, c *cache.Cache, data []byte, r *rand.Rand) error {
	d := digest.FromBytes(data)
	for {
		w, offset, err := c.Begin(ctx, d.String())
		if err != nil {
			return err
		}
		if r.Intn(6) == 0 { // another content first, as from a server that is wrong
			if _, err := w.Write(bundletest.Random(r.Int63(), len(data))); err != nil {
				return errors.Join(err, w.Close())
			}
			if err := w.Reset(); err != nil {
				return errors.Join(err, w.Close())
			}
			offset = 0
		}
		rest := data[offset:]
		for len(rest) > 0 {
			n := min(len(rest), 1+r.Intn(2<<20))
			if _, err := w.Write(rest[:n]); err != nil {
				return errors.Join(err, w.Close())
			}
			rest = rest[n:]
			time.Sleep(time.Duration(r.Intn(3)) * time.Millisecond)
		}
		if r.Intn(6) == 0 { // ends before it is whole
			if err := w.Close(); err != nil {
				return err
			}
			continue
		}
		_, err = w.Commit(ctx, int64(len(data)), d)
		return errors.Join(err, w.Close())
	}
}

// TestPlacesAreBounded has a blob with more bytes than announced arrive before the others. Nothing of it comes into
// their places.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	s := arrivingOf(t, [][]byte{
		bundletest.Random(1, 2*frameSize), bundletest.Random(2, 2*frameSize),
		bundletest.Random(3, 2*frameSize),
	})
	for i := range s.later {
		s.later[i].MediaType = ocispec.MediaTypeImageLayerGzip
	}
	var others sync.WaitGroup
	others.Add(2)
	s.create(t, bundle.IncomingOptions{
		Jobs: 3, Window: 1 << 40,
		Fetch: func(ctx context.Context, d digest.Digest) error {
			if d != s.later[0].Digest {
				defer others.Done()
				return bundletest.Put(ctx, s.scratch.Cache, s.content[d])
			}
			others.Wait()
			w, _, err := s.scratch.Begin(ctx, d.String())
			if err != nil {
				return err
			}
			if _, err = w.Write(bundletest.Random(4, 6*frameSize)); err == nil {
				_, err = w.Commit(ctx, int64(len(s.content[d])), d)
			}
			if err == nil {
				t.Error("a blob with other bytes was taken")
			}
			if err := w.Close(); err != nil {
				return err
			}
			return bundletest.Put(ctx, s.scratch.Cache, s.content[d])
		},
	})
}
