package bundle_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestStoredManifests reads a bundle of another writer, which stores frames of indexes and manifests, like the bundle
// that it was made of. Stored frames are read in place only from a file.
func TestStoredManifests(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	for i := range 300 { // manifests in several frames
		b.File(fmt.Sprintf("local/%d", i), strings.Repeat("name", 100), nil, fmt.Append(nil, i))
	}
	compressed := b.Bundle()
	data, err := os.ReadFile(compressed.Path)
	if err != nil {
		t.Fatal(err)
	}
	want := surveyOf(t, compressed.Reader)
	for name, selected := range map[string]func(int) bool{
		"all":       func(int) bool { return true },
		"alternate": func(i int) bool { return i%2 == 0 },
		"others":    func(i int) bool { return i%2 == 1 },
	} {
		path := filepath.Join(t.TempDir(), "stored.kkb")
		if err := os.WriteFile(path, bundletest.Stored(t, data, selected), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := bundle.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if d := cmp.Diff(want, surveyOf(t, r)); d != "" {
			t.Errorf("%s (-compressed +stored):\n%s", name, d)
		}
		if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, d := range r.Blobs() {
			content, err := r.ReadBlob(t.Context(), d.Digest, d.Size)
			was, wasErr := compressed.Reader.ReadBlob(t.Context(), d.Digest, d.Size)
			if err != nil || wasErr != nil || string(content) != string(was) {
				t.Errorf("%s: blob %s: %v, %v", name, d.Digest, err, wasErr)
			}
		}
	}
}

func surveyOf(t *testing.T, r *bundle.Reader) []bundle.Contents {
	t.Helper()
	all, err := r.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}
