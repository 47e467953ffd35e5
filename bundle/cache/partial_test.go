package cache_test

import (
	"bytes"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// TestCachePartial says what Begin goes on from, without taking it over.
func TestCachePartial(t *testing.T) {
	t.Parallel()
	c, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	partial := func(key string) int64 {
		t.Helper()
		n, err := c.Partial(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := partial("k"); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
	w, _, err := c.Begin(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(bytes.Repeat([]byte("some bytes "), 1_000_000)); err != nil { // two whole pieces and some
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	told := partial("k")
	w, offset, err := c.Begin(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if told != offset || offset == 0 || partial("other") != 0 {
		t.Errorf("told %d, begins at %d", told, offset)
	}
}
