package ocilayout_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
)

func TestExtractLayout(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	dir := filepath.Join(t.TempDir(), "out")
	if err := ocilayout.Extract(t.Context(), b.Reader, dir, nil); err != nil {
		t.Fatal(err)
	}
	bundletest.CheckLayout(t, dir, b.Reader.Index())
	if err := ocilayout.Extract(t.Context(), b.Reader, dir, nil); err == nil {
		t.Error("extracted over another layout")
	}
	for _, d := range b.Reader.Blobs() {
		data, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", d.Digest.Encoded()))
		if err != nil || digest.FromBytes(data) != d.Digest {
			t.Errorf("blob %s: %v", d.Digest, err)
		}
	}
}

// TestExtractContinues after an interruption, and keeps nothing that is wrong.
func TestExtractContinues(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	dir := t.TempDir()
	it, _ := b.Reader.Find(bundle.KindImage, bundletest.MultiRef, "")
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(dir, "blobs", "sha256", it.Descriptor.Digest.Encoded())
	if err := os.WriteFile(wrong, make([]byte, it.Descriptor.Size), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ocilayout.Extract(t.Context(), b.Reader, dir, []bundle.Item{it}); err != nil {
		t.Fatal(err)
	}
	x := b.Reader.Index()
	x.Items = []bundle.Item{it}
	bundletest.CheckLayout(t, dir, x)
	files, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil || len(files) != 7 { // the index, two manifests, two configs, two layers
		t.Errorf("%d blobs: %v", len(files), err)
	}
}

// TestExtractStaysInside even where a link in the directory leads out of it.
func TestExtractStaysInside(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	if err := ocilayout.Extract(t.Context(), b.Reader, dir, nil); err == nil {
		t.Error("extracted through a link that leads out")
	}
	if files, err := os.ReadDir(outside); err != nil || len(files) != 0 {
		t.Errorf("outside: %v, %v", files, err)
	}
}
