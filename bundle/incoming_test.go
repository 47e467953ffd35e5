package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// A arriving is a bundle whose contents come while it is written, and the bytes it has to have.
type arriving struct {
	dir     string
	scratch *cache.Scratch
	index   bundle.Index
	want    []byte
	later   []ocispec.Descriptor
	content map[digest.Digest][]byte
}

// newArriving is arrivingOf files of many sizes.
func newArriving(t *testing.T) *arriving {
	t.Helper()
	var contents [][]byte
	for i, n := range []int{
		0, 1, 100, 64 << 10, 64<<10 + 1, 3 * frameSize, frameSize, 70_000, 71_000, 90_000,
		2 * frameSize, 5, 6, 7, 8, 9,
	} {
		contents = append(contents, bundletest.Random(int64(i), n))
	}
	return arrivingOf(t, contents)
}

// arrivingOf puts manifests into scratch space, and leaves out the contents of files.
func arrivingOf(t *testing.T, contents [][]byte) *arriving {
	t.Helper()
	b := bundletest.NewBuilder(t)
	s := &arriving{dir: t.TempDir(), content: map[digest.Digest][]byte{}}
	for i, data := range contents {
		b.File(fmt.Sprint("local/", i), fmt.Sprint(i), nil, data)
		s.content[digest.FromBytes(data)] = data
	}
	whole := b.Bundle()
	var err error
	if s.want, err = os.ReadFile(whole.Path); err != nil {
		t.Fatal(err)
	}
	if s.scratch, err = cache.OpenScratch(s.dir, bundle.LevelFast); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.scratch.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
	s.index = b.Index
	for _, d := range whole.Reader.Blobs() {
		if _, ok := s.content[d.Digest]; ok {
			s.later = append(s.later, d)
			continue
		}
		data, err := b.Cache.ReadBlob(t.Context(), d.Digest, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if err := bundletest.Put(t.Context(), s.scratch.Cache, data); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *arriving) write(t *testing.T, w io.Writer, o bundle.IncomingOptions) error {
	t.Helper()
	o.Blobs = s.later
	src, err := bundle.NewIncoming(s.scratch.Cache, o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = bundle.Write(t.Context(), w, src, s.index, bundle.WriteOptions{})
	return err
}

const frameSize = 4 << 20

// TestIncoming wants the bytes of a cached build, each blob fetched once, and never more ahead of the writer than
// allowed.
func TestIncoming(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		jobs   int
		window int64
	}{{1, 0}, {2, 200_000}, {8, 5 << 20}, {16, 1 << 40}} {
		t.Run(fmt.Sprint(tt.jobs, " jobs, window ", tt.window), func(t *testing.T) {
			t.Parallel()
			s := newArriving(t)
			var mu sync.Mutex
			fetched := map[digest.Digest]int{}
			var out bytes.Buffer
			err := s.write(t, &out, bundle.IncomingOptions{
				Jobs: tt.jobs, Window: tt.window,
				Fetch: func(ctx context.Context, d digest.Digest) error {
					mu.Lock()
					fetched[d]++
					ahead := int64(len(s.content[d]))
					most := max(tt.window, ahead)
					for other := range fetched {
						if _, ok, err := s.scratch.Stat(ctx, other); ok && err == nil && other != d {
							ahead += int64(len(s.content[other]))
						}
					}
					mu.Unlock()
					if ahead > most+frameSize/1024 {
						t.Errorf("%d bytes are ahead of the writer, want at most %d", ahead, most)
					}
					return bundletest.Put(ctx, s.scratch.Cache, s.content[d])
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), s.want) {
				t.Errorf("%d bytes, not those of a cached build, which has %d", out.Len(), len(s.want))
			}
			for d, n := range fetched {
				if _, ok, _ := s.scratch.Stat(t.Context(), d); n != 1 || ok {
					t.Errorf("blob %s was fetched %d times, and is still there: %v", d, n, ok)
				}
			}
			if len(fetched) != len(s.later) {
				t.Errorf("fetched %d blobs of %d", len(fetched), len(s.later))
			}
		})
	}
}

// TestIncomingFails wants the first failure, whichever blob the writer waits for, and no fetch that goes on.
func TestIncomingFails(t *testing.T) {
	t.Parallel()
	s := newArriving(t)
	broken := errors.New("no such blob")
	var mu sync.Mutex
	n, running := 0, 0
	err := s.write(t, io.Discard, bundle.IncomingOptions{
		Jobs: 4, Window: 1 << 40,
		Fetch: func(ctx context.Context, d digest.Digest) error {
			mu.Lock()
			n++
			running++
			number := n
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			}()
			if number == 4 {
				return broken
			}
			if number < 4 {
				<-ctx.Done() // the writer waits for these
				return ctx.Err()
			}
			return bundletest.Put(ctx, s.scratch.Cache, s.content[d])
		},
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	mu.Lock()
	defer mu.Unlock()
	if running != 0 {
		t.Errorf("%d fetches still run", running)
	}
}

// TestIncomingWrongSize has a manifest with a wrong size of its blob, which arrives with the right digest. No bundle
// is made of it.
func TestIncomingWrongSize(t *testing.T) {
	t.Parallel()
	s := arrivingOf(t, [][]byte{bundletest.Random(1, 2*frameSize)})
	item := &s.index.Items[0].Descriptor
	m, err := s.scratch.Cache.ReadBlob(t.Context(), item.Digest, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	m = bytes.Replace(m, fmt.Appendf(nil, `"size":%d`, s.later[0].Size),
		fmt.Appendf(nil, `"size":%d`, s.later[0].Size+1), 1)
	if err := bundletest.Put(t.Context(), s.scratch.Cache, m); err != nil {
		t.Fatal(err)
	}
	item.Digest, item.Size = digest.FromBytes(m), int64(len(m))
	s.later[0].Size++
	o := bundle.IncomingOptions{Blobs: s.later, Jobs: 1, Fetch: func(ctx context.Context, d digest.Digest) error {
		return bundletest.Put(ctx, s.scratch.Cache, s.content[d])
	}}
	const want = "has 8388608 bytes instead of the expected 8388609"
	src, err := bundle.NewIncoming(s.scratch.Cache, o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "out.kkb")
	if _, err := bundle.Create(t.Context(), path, src, s.index, bundle.WriteOptions{}); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("to its place: got %v, want %s", err, want)
	}
	if err := s.write(t, io.Discard, o); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("through scratch space: got %v, want %s", err, want)
	}
}

// TestCacheIncoming wants the bytes of a bundle written after all blobs arrived, and all blobs in the cache afterwards.
func TestCacheIncoming(t *testing.T) {
	t.Parallel()
	s := newArriving(t)
	c := bundletest.OpenCache(t, t.TempDir())
	for _, d := range s.index.Items {
		data, err := s.scratch.Cache.ReadBlob(t.Context(), d.Descriptor.Digest, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if err := bundletest.Put(t.Context(), c, data); err != nil {
			t.Fatal(err)
		}
	}
	empty := []byte("{}")
	if err := bundletest.Put(t.Context(), c, empty); err != nil {
		t.Fatal(err)
	}
	src, err := bundle.NewIncoming(c, bundle.IncomingOptions{
		Blobs: s.later, Jobs: 1, Window: math.MaxInt64,
		Fetch: func(ctx context.Context, d digest.Digest) error { return bundletest.Put(ctx, c, s.content[d]) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := bundle.Write(t.Context(), &out, src, s.index, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), s.want) {
		t.Error("other bytes than those of a bundle written after all blobs arrived")
	}
	for d := range s.content {
		if _, ok, err := c.Stat(t.Context(), d); !ok || err != nil {
			t.Errorf("blob %s is not in the cache: %v", d, err)
		}
	}
}
