package bundle_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestSurvey compares with what each item alone comes to in a bundle of its own.
func TestSurvey(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 2, 3000))
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	b.ImageIndex("docker.io/library/sparse:1", bundletest.MultiImage(t, 3),
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "arm64" })
	inner := b.Index.Items[1].Descriptor
	outer := b.Bytes(fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		inner.MediaType, inner.Digest, inner.Size))
	outer.MediaType = ocispec.MediaTypeImageIndex
	b.Item(bundle.Item{Kind: bundle.KindImage, Ref: "docker.io/library/nested:1", Descriptor: outer})
	b.File("local/f", "f", nil, []byte("content"))
	r := b.Bundle().Reader
	got, err := r.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"linux/amd64", "linux/arm64"}
	platforms := map[string][]string{
		bundletest.MultiRef: both, "docker.io/library/sparse:1": {"linux/arm64"},
		"docker.io/library/nested:1": both,
	}
	for i, it := range r.Index().Items {
		alone := *b
		alone.Index.Items = []bundle.Item{it}
		want := bundle.Contents{Platforms: platforms[it.Ref]}
		if it.Kind == bundle.KindFile {
			want.File = digest.FromString("content")
		}
		for _, d := range alone.Bundle().Reader.Blobs() {
			want.Size += d.Size
		}
		if d := cmp.Diff(want, got[i]); d != "" {
			t.Errorf("%s (-want +got):\n%s", it, d)
		}
	}
}
