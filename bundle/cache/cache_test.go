package cache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

const frameSize = 4 << 20

func begin(t testing.TB, c *cache.Cache, key string) (cache.BlobWriter, int64) {
	t.Helper()
	w, off, err := c.Begin(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, off
}

func write(t testing.TB, w io.Writer, b []byte) {
	t.Helper()
	if n, err := w.Write(b); n != len(b) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(b), err)
	}
}

// cached reads a blob back.
func cached(t testing.TB, c *cache.Cache, d digest.Digest) ([]byte, error) {
	t.Helper()
	r, err := c.Open(t.Context(), d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(struct{ io.Reader }{r})
	return data, errors.Join(err, r.Close())
}

// entries returns the paths of all files in the cache's directory.
func entries(t testing.TB, dir string) (blobs, parts []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another process works there
			return nil
		case err != nil || e.IsDir():
		case filepath.Base(filepath.Dir(path)) == "part":
			parts = append(parts, path)
		case filepath.Base(filepath.Dir(filepath.Dir(path))) == "sha256":
			blobs = append(blobs, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return blobs, parts
}

func TestCacheRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, frameSize - 1, frameSize, frameSize + 1, 3*frameSize + 5} {
		for name, content := range map[string][]byte{
			"random": bundletest.Random(int64(n), n),
			"text":   bundletest.Text(int64(n), n),
		} {
			d := digest.FromBytes(content)
			w, off := begin(t, c, fmt.Sprint(name, n))
			if off != 0 {
				t.Errorf("%s %d: begins at %d", name, n, off)
			}
			for rest := content; len(rest) > 0; { // in odd portions
				k := min(len(rest), 100_003)
				write(t, w, rest[:k])
				rest = rest[k:]
			}
			got, err := w.Commit(t.Context(), int64(n), d)
			if err != nil || got.Digest != d || got.Size != int64(n) {
				t.Fatalf("%s %d: commit: %v, %v", name, n, got, err)
			}
			size, ok, err := bundletest.OpenCache(t, dir).Stat(t.Context(), d)
			if size != int64(n) || !ok || err != nil {
				t.Errorf("%s %d: stat: %d, %v, %v", name, n, size, ok, err)
			}
			if data, err := cached(t, c, d); err != nil || !bytes.Equal(data, content) {
				t.Errorf("%s %d: read %d bytes, %v", name, n, len(data), err)
			}
		}
	}
	if _, parts := entries(t, dir); len(parts) != 0 {
		t.Errorf("left %v", parts)
	}
	if _, ok, err := c.Stat(t.Context(), digest.FromString("not there")); ok || err != nil {
		t.Errorf("stat of an absent blob: %v, %v", ok, err)
	}
	if _, _, err := c.Stat(t.Context(), "sha512:"+digest.Digest(strings.Repeat("0", 128))); err == nil {
		t.Error("a sha512 digest was accepted")
	}
}

func TestCacheCommitMismatch(t *testing.T) {
	t.Parallel()
	content := bundletest.Text(1, 2*frameSize)
	right, other := digest.FromBytes(content), digest.FromString("other")
	for _, tt := range []struct {
		name   string
		size   int64
		want   digest.Digest
		resume int64 // where the next writer continues
	}{
		{"digest", -1, other, 0},
		{"digest of the right size", int64(len(content)), other, 0},
		{"too long", frameSize, right, 0},
		{"too short", 3 * frameSize, right, 2 * frameSize},
	} {
		dir := t.TempDir()
		c := bundletest.OpenCache(t, dir)
		w, _ := begin(t, c, "key")
		write(t, w, content)
		_, err := w.Commit(t.Context(), tt.size, tt.want)
		var mismatch *cache.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Got != right || mismatch.GotSize != int64(len(content)) {
			t.Errorf("%s: got %v, want a MismatchError", tt.name, err)
		}
		if blobs, _ := entries(t, dir); len(blobs) != 0 {
			t.Errorf("%s: kept %v", tt.name, blobs)
		}
		if _, off := begin(t, c, "key"); off != tt.resume {
			t.Errorf("%s: the next writer begins at %d, want %d", tt.name, off, tt.resume)
		}
	}
}

func TestCacheResume(t *testing.T) {
	t.Parallel()
	content := append(bundletest.Text(1, 3*frameSize), bundletest.Random(2, frameSize+100)...)
	for _, tt := range []struct {
		name   string
		damage func(part []byte) []byte
		want   int64
	}{
		{"interrupted", func(p []byte) []byte { return p }, 4 * frameSize},
		{"torn", func(p []byte) []byte { return p[:len(p)-frameSize/2] }, 3 * frameSize},
		{"zeros at the end", func(p []byte) []byte { return append(p, make([]byte, 1000)...) }, 4 * frameSize},
		{"flipped in the first piece", func(p []byte) []byte { p[1000] ^= 1; return p }, 0},
		{"empty", func([]byte) []byte { return nil }, 0},
		{"junk", func([]byte) []byte { return []byte("junk that is long enough for a frame") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := bundletest.OpenCache(t, dir)
			w, _ := begin(t, c, "key")
			write(t, w, content[:4*frameSize+50])
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			_, parts := entries(t, dir)
			if len(parts) != 1 {
				t.Fatalf("parts: %v", parts)
			}
			part, err := os.ReadFile(parts[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(parts[0], tt.damage(part), 0o600); err != nil {
				t.Fatal(err)
			}
			w, off := begin(t, bundletest.OpenCache(t, dir), "key")
			if off != tt.want {
				t.Fatalf("continues at %d, want %d", off, tt.want)
			}
			write(t, w, content[off:])
			if _, err := w.Commit(t.Context(), int64(len(content)), digest.FromBytes(content)); err != nil {
				t.Fatal(err)
			}
			if data, err := cached(t, c, digest.FromBytes(content)); err != nil || !bytes.Equal(data, content) {
				t.Errorf("read %d bytes: %v", len(data), err)
			}
		})
	}
}

func TestCacheReset(t *testing.T) {
	t.Parallel()
	c := bundletest.OpenCache(t, t.TempDir())
	w, _ := begin(t, c, "key")
	write(t, w, bundletest.Text(1, 2*frameSize+5))
	if err := w.Reset(); err != nil {
		t.Fatal(err)
	}
	content := bundletest.Text(2, frameSize+7)
	write(t, w, content)
	if _, err := w.Commit(t.Context(), -1, digest.FromBytes(content)); err != nil {
		t.Fatal(err)
	}
	if data, err := cached(t, c, digest.FromBytes(content)); err != nil || !bytes.Equal(data, content) {
		t.Errorf("read %d bytes: %v", len(data), err)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write after commit: %v", err)
	}
}

func TestCacheCancelledCommitKeepsThePart(t *testing.T) {
	t.Parallel()
	c := bundletest.OpenCache(t, t.TempDir())
	w, _ := begin(t, c, "key")
	write(t, w, bundletest.Text(1, frameSize+5))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Commit(ctx, -1, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, off := begin(t, c, "key"); off != frameSize {
		t.Errorf("continues at %d", off)
	}
}

// TestCacheDamage flips a bit at many places of an entry: reading must fail with the entry's name or not be possible.
func TestCacheDamage(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{
		"small":  bundletest.Text(1, 1000),
		"stored": bundletest.Random(1, 70_000), "compressed": bundletest.Text(2, 90_000),
	} {
		dir := t.TempDir()
		c := bundletest.OpenCache(t, dir)
		w, _ := begin(t, c, "key")
		write(t, w, content)
		d, err := w.Commit(t.Context(), -1, "")
		if err != nil {
			t.Fatal(err)
		}
		blobs, _ := entries(t, dir)
		good, err := os.ReadFile(blobs[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(good); i += 1 + len(good)/300 {
			bad := bytes.Clone(good)
			bad[len(bad)-1-i] ^= 0x10
			if err := os.WriteFile(blobs[0], bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := cached(t, c, d.Digest)
			var damaged *cache.EntryError
			if !errors.As(err, &damaged) || damaged.Digest != d.Digest {
				t.Errorf("%s, byte %d from the end: got %v, want an EntryError", name, i, err)
			}
		}
		for _, n := range []int{0, 1, len(good) / 2, len(good) - 1} {
			if err := os.WriteFile(blobs[0], good[:n], 0o600); err != nil {
				t.Fatal(err)
			}
			if _, ok, err := c.Stat(t.Context(), d.Digest); ok || err != nil {
				t.Errorf("%s cut to %d bytes: stat says %v, %v", name, n, ok, err)
			}
		}
		// A new copy takes the damaged one's place.
		w, _ = begin(t, c, "again")
		write(t, w, content)
		if _, err := w.Commit(t.Context(), -1, d.Digest); err != nil {
			t.Fatal(err)
		}
		if data, err := cached(t, c, d.Digest); err != nil || !bytes.Equal(data, content) {
			t.Errorf("%s: after repair: %v", name, err)
		}
	}
}

// TestCreateFindsCacheDamage must not write a bundle from it, and Drop must make way for a new copy.
func TestCreateFindsCacheDamage(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t) // the shared cache stays as it is
	content := bundletest.Text(12, 2*frameSize+77)
	b.File("https://files.example/text", "t", nil, content)
	d := digest.FromBytes(content)
	path := damageEntry(t, b.Cache, d)
	_, err := bundle.Create(t.Context(), filepath.Join(t.TempDir(), "x.kkb"), b.Cache, b.Index, bundle.WriteOptions{})
	var damaged *cache.EntryError
	if !errors.As(err, &damaged) || damaged.Digest != d {
		t.Fatalf("got %v, want an EntryError", err)
	}
	if err := b.Cache.Drop(damaged.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Drop: %v", err)
	}
	b.Bytes(content)
	if _, err := bundle.Create(t.Context(), filepath.Join(t.TempDir(), "x.kkb"), b.Cache, b.Index,
		bundle.WriteOptions{}); err != nil {
		t.Error(err)
	}
}

// damageEntry flips a bit in the middle of an entry's frames and returns its path.
func damageEntry(t *testing.T, c *cache.Cache, d digest.Digest) string {
	t.Helper()
	r, err := c.Open(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var path string
	blobs, _ := entries(t, cache.DirOf(c))
	for _, name := range blobs {
		if filepath.Base(name) == d.Encoded() {
			path = name
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCacheConcurrentWriters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	caches := []*cache.Cache{bundletest.OpenCache(t, dir), bundletest.OpenCache(t, dir)}
	content := append(bundletest.Text(1, 2*frameSize), bundletest.Random(1, 1000)...)
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			w, off, err := caches[i%2].Begin(t.Context(), "the same key")
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := w.Write(content[off:]); err != nil {
				t.Error(err)
			}
			if _, err := w.Commit(t.Context(), int64(len(content)), digest.FromBytes(content)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if data, err := cached(t, caches[0], digest.FromBytes(content)); err != nil || !bytes.Equal(data, content) {
		t.Errorf("read %d bytes: %v", len(data), err)
	}
	if blobs, parts := entries(t, dir); len(blobs) != 1 || len(parts) != 0 {
		t.Errorf("left %v and %v", blobs, parts)
	}
}

// TestCacheAbandonedPart keeps the beginning of a blob for a month, and for as long as somebody writes it.
func TestCacheAbandonedPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	for _, key := range []string{"new", "old"} {
		w, _ := begin(t, c, key)
		write(t, w, bundletest.Random(1, frameSize))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, c, "in use")
	long := time.Now().Add(-31 * 24 * time.Hour)
	_, parts := entries(t, dir)
	for _, key := range []string{"old", "in use"} {
		name := sha256.Sum256([]byte(key))
		i := slices.IndexFunc(parts,
			func(p string) bool { return filepath.Base(p) == "key-"+hex.EncodeToString(name[:]) })
		if err := os.Chtimes(parts[i], long, long); err != nil {
			t.Fatal(err)
		}
	}
	c = bundletest.OpenCache(t, dir)
	if _, parts := entries(t, dir); len(parts) != 2 {
		t.Errorf("left %v, want two", parts)
	}
	if _, off := begin(t, c, "old"); off != 0 {
		t.Errorf("an abandoned part goes on at %d", off)
	}
	if _, off := begin(t, c, "new"); off != frameSize {
		t.Errorf("a new part goes on at %d", off)
	}
}

// TestCacheKilledWriter kills a real process in the middle of writing; the next one continues with its files.
// Content that does not compress has frames of a size that is known here: one more byte than the first frame says
// that it is whole.
func TestCacheKilledWriter(t *testing.T) {
	content := bundletest.Random(1, 3*frameSize+1000)
	if dir := os.Getenv("KKBUNDLE_TEST_CACHE"); dir != "" {
		w, _ := begin(t, bundletest.OpenCache(t, dir), "key")
		second, _ := begin(t, bundletest.OpenCache(t, dir), "key")
		write(t, second, content)
		write(t, w, content)
		untilKilled(t)
		return
	}
	const frame = frameSize + 4 + 1 + 4 + 32*3 + 4 // TestStoredCostsLittle
	dir := t.TempDir()
	cmd := startAgain(t, "KKBUNDLE_TEST_CACHE="+dir)
	for own, shared := false, false; !own || !shared; time.Sleep(time.Millisecond) {
		_, parts := entries(t, dir)
		for _, p := range parts {
			info, err := os.Stat(p)
			begun := err == nil && info.Size() > frame
			own, shared = own || begun && strings.HasSuffix(p, ".own"), shared || begun && !strings.HasSuffix(p, ".own")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
	w, off := begin(t, bundletest.OpenCache(t, dir), "key")
	if off == 0 || off%frameSize != 0 {
		t.Errorf("continues at %d", off)
	}
	write(t, w, content[off:])
	if _, err := w.Commit(t.Context(), int64(len(content)), digest.FromBytes(content)); err != nil {
		t.Error(err)
	}
	if _, parts := entries(t, dir); len(parts) != 0 {
		t.Errorf("left %v", parts)
	}
}
