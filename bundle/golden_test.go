package bundle_test

import (
	"bytes"
	"flag"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

var update = flag.Bool("update", false, "write testdata/bundles anew; only for a new version of the format")

// golden makes the items of testdata/bundles/v1.kkb: every kind of frame, a sparse index, a chart, files.
func golden(t *testing.T) *bundletest.Builder {
	b := bundletest.NewBuilder(t)
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 2, 3000))
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2),
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	b.File(bundletest.FileRef, "it", &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		[]byte(bundletest.FileContent))
	b.File("https://files.example/text", "text", nil, bytes.Repeat([]byte("the same line again\n"), 5000))
	b.File("https://files.example/random", "random", nil, bundletest.Random(3, 66_000))
	b.File("local/empty", "empty", nil, nil)
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	return b
}

// TestGolden reads the first version's bundle, which every later kkbundle must read. TestBytes holds the bytes of
// today's.
func TestGolden(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "testdata", "bundles", "v1.kkb")
	if *update {
		b := golden(t)
		if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rep, err := r.Verify(t.Context(), bundle.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const identity = "sha256:156309f559ecd94eec8dbb109e252f7b4bc81b84ddecb51f5dffd91e79bda8cf"
	if rep.Digest != identity || rep.Blobs != 20 || len(r.Index().Items) != 7 {
		t.Errorf("identity %s, %d blobs, %d items", rep.Digest, rep.Blobs, len(r.Index().Items))
	}
	it, ok := r.Find(bundle.KindFile, bundletest.FileRef, "linux/amd64")
	if !ok {
		t.Fatal("the file is not found")
	}
	d, err := r.ContentOf(t.Context(), it)
	if err != nil {
		t.Fatal(err)
	}
	data, err := r.ReadBlob(t.Context(), d.Digest, 100)
	if err != nil || string(data) != bundletest.FileContent || d.Annotations[bundle.AnnotationMode] != "0755" {
		t.Errorf("file: %q, %v, %v", data, d.Annotations, err)
	}
}
