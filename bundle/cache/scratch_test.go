package cache_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// TestScratchSwept removes what killed processes left, and nothing that is in use or somebody else's.
func TestScratchSwept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	used, err := cache.OpenScratch(dir, bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	if err := bundletest.Put(t.Context(), used.Cache, bundletest.Text(1, 1000)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".kkbundle-scratch-gone/sha256/00", "kkbundle-scratch-2", ".kkbundle-scratch-3"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		".kkbundle-scratch-gone.lock", ".kkbundle-scratch-gone/sha256/00/x",
		".kkbundle-scratch-lone.lock", "kkbundle-scratch-2.lock",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := cache.SweepScratch(dir); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if len(left) != 5 || strings.Contains(strings.Join(left, " "), "scratch-gone") ||
		strings.Contains(strings.Join(left, " "), "scratch-lone") {
		t.Errorf("left %v", left)
	}
	if data, err := cached(t, used.Cache, digest.FromBytes(bundletest.Text(1, 1000))); err != nil || len(data) != 1000 {
		t.Errorf("what is in use: %d bytes, %v", len(data), err)
	}
	if err := used.Close(); err != nil {
		t.Error(err)
	}
}
