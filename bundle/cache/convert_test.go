package cache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

func openLevelIn(t testing.TB, dir string, level bundle.Level) *cache.Cache {
	t.Helper()
	c, err := cache.Open(dir, level)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// textFiles puts compressible files into a cache: a small one, one of one frame, and some of several.
func textFiles(t testing.TB, c *cache.Cache) bundle.Index {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Cache = c
	for i, n := range textSizes() {
		b.File(fmt.Sprint("local/", i), fmt.Sprint(i), nil, bundletest.Text(int64(i), n))
	}
	return b.Index
}

func textSizes() []int { return []int{1000, 100_000, frameSize + 17, 2*frameSize + 5} }

func bundleOf(t testing.TB, c *cache.Cache, x bundle.Index) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := bundle.Write(context.WithoutCancel(t.Context()), &out, c, x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestCacheOfAnotherLevelIsUsed builds at every level from blobs that were stored at another one, with the bytes that a
// download at that level gives.
func TestCacheOfAnotherLevelIsUsed(t *testing.T) {
	t.Parallel()
	for from, to := range map[bundle.Level]bundle.Level{
		bundle.LevelFast: bundle.LevelDefault, bundle.LevelDefault: bundle.LevelBest,
		bundle.LevelBest: bundle.LevelFast,
	} {
		fresh := openLevelIn(t, t.TempDir(), to)
		want := bundleOf(t, fresh, textFiles(t, fresh))
		dir := t.TempDir()
		old := openLevelIn(t, dir, from)
		x := textFiles(t, old)
		before := bundleOf(t, old, x)
		for range 2 {
			if !bytes.Equal(bundleOf(t, openLevelIn(t, dir, to), x), want) {
				t.Errorf("from %v to %v: other bytes than those of a download at that level", from, to)
			}
		}
		if !bytes.Equal(bundleOf(t, old, x), before) {
			t.Errorf("the cache of level %v gives other bytes than before", from)
		}
	}
}

// TestCacheOfAnotherVersionIsUsed renames an encoder's directory, as another version of the compressor would name it:
// builds use its blobs, and gc keeps them.
func TestCacheOfAnotherVersionIsUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	x := textFiles(t, c)
	want := bundleOf(t, c, x)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	id := sha256.Sum256([]byte("another version"))
	other := filepath.Join(dir, hex.EncodeToString(id[:8]))
	if err := os.Rename(cache.DirOf(c), other); err != nil {
		t.Fatal(err)
	}
	if r := gc(t, dir, cache.GCOptions{}); r.Removed > 0 {
		t.Errorf("gc removed %d usable blobs", r.Removed)
	}
	if got := bundleOf(t, openLevelIn(t, dir, bundle.LevelFast), x); !bytes.Equal(got, want) {
		t.Error("other bytes than before")
	}
}

// TestDamageInAnotherLevelIsNamed flips a byte: the entry is a *CacheError with its own path, and once it is dropped
// the blob is absent.
func TestDamageInAnotherLevelIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := openLevelIn(t, dir, bundle.LevelFast)
	x := textFiles(t, old)
	large := digest.FromBytes(bundletest.Text(3, textSizes()[3]))
	damageEntry(t, old, large)
	c := openLevelIn(t, dir, bundle.LevelDefault)
	_, err := bundle.Write(t.Context(), new(bytes.Buffer), c, x, bundle.WriteOptions{})
	damaged := cache.EntryErrors(err)
	if len(damaged) != 1 || damaged[0].Digest != large ||
		filepath.Dir(filepath.Dir(filepath.Dir(damaged[0].Path))) != cache.DirOf(old) {
		t.Fatalf("%v", err)
	}
	if err := c.DropDamaged(damaged[0]); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := c.Stat(t.Context(), large); ok || err != nil {
		t.Errorf("the damaged blob is still there: %v", err)
	}
	if _, err := os.Stat(damaged[0].Path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
