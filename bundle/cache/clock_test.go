package cache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// TestCacheWithAClockBehindItsFileSystem checks that a use that begins now protects an entry although the machine's
// clock is decades behind the file system's: a test bubble starts in the year 2000.
func TestCacheWithAClockBehindItsFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := bundletest.OpenCache(t, dir)
	asked, idle := blob(t, old, 1, 1000), blob(t, old, 2, 1000)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, time.Hour)
	synctest.Test(t, func(t *testing.T) {
		if time.Now().Year() != 2000 {
			t.Fatal("the bubble's clock is not behind")
		}
		run := bundletest.OpenCache(t, dir)
		if _, ok, err := run.Stat(t.Context(), asked); !ok || err != nil {
			t.Fatal(ok, err)
		}
		nothing := int64(0)
		gc(t, dir, cache.GCOptions{MaxSize: &nothing})
		if !there(t, run, asked) {
			t.Error("GC removed an entry of a running build")
		}
		if there(t, run, idle) {
			t.Error("GC kept an unused entry")
		}
		if err := run.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGCMeasuresAgesByTheFileSystemsClock checks OlderThan and abandoned parts with the same clock.
func TestGCMeasuresAgesByTheFileSystemsClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := bundletest.OpenCache(t, dir)
	d := blob(t, old, 1, 1000)
	w, _ := begin(t, old, "unfinished")
	write(t, w, bundletest.Random(2, frameSize+1))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, 60*24*time.Hour)
	synctest.Test(t, func(t *testing.T) {
		day := 24 * time.Hour
		gc(t, dir, cache.GCOptions{OlderThan: &day})
		run := bundletest.OpenCache(t, dir)
		if there(t, run, d) {
			t.Error("GC kept an entry unused for 60 days")
		}
		if err := run.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if _, parts := entries(t, dir); len(parts) > 0 {
		t.Errorf("abandoned parts stay: %v", parts)
	}
}
