package bundle_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestNoKindOfManifestHidesAMissingBlob: a bundle with a manifest of a known kind, as an item or below an index, is not
// written and not whole where a blob that the manifest names is missing.
func TestNoKindOfManifestHidesAMissingBlob(t *testing.T) {
	t.Parallel()
	gone := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString("gone"), Size: 4}
	config := func(b *bundletest.Builder) ocispec.Descriptor {
		d := b.Bytes([]byte("{}"))
		d.MediaType = ocispec.MediaTypeImageConfig
		return d
	}
	image := func(mediaType string) func(b *bundletest.Builder) ocispec.Descriptor {
		return func(b *bundletest.Builder) ocispec.Descriptor {
			d := b.JSON(map[string]any{
				"schemaVersion": 2, "mediaType": mediaType, "config": config(b),
				"layers": []any{gone},
			})
			d.MediaType = mediaType
			return d
		}
	}
	index := func(mediaType string) func(b *bundletest.Builder) ocispec.Descriptor {
		return func(b *bundletest.Builder) ocispec.Descriptor {
			child := gone
			child.MediaType = ocispec.MediaTypeImageManifest
			d := b.JSON(map[string]any{"schemaVersion": 2, "mediaType": mediaType, "manifests": []any{child}})
			d.MediaType = mediaType
			return d
		}
	}
	schema1 := func(mediaType string) func(b *bundletest.Builder) ocispec.Descriptor {
		return func(b *bundletest.Builder) ocispec.Descriptor {
			d := b.JSON(map[string]any{
				"schemaVersion": 1, "name": "a/b", "tag": "1",
				"fsLayers": []any{map[string]any{"blobSum": gone.Digest}},
			})
			d.MediaType = mediaType
			return d
		}
	}
	kinds := map[string]func(b *bundletest.Builder) ocispec.Descriptor{
		"OCI image":    image(ocispec.MediaTypeImageManifest),
		"Docker image": image("application/vnd.docker.distribution.manifest.v2+json"),
		"OCI index":    index(ocispec.MediaTypeImageIndex),
		"Docker list":  index("application/vnd.docker.distribution.manifest.list.v2+json"),
		"OCI artifact": func(b *bundletest.Builder) ocispec.Descriptor {
			const mediaType = "application/vnd.oci.artifact.manifest.v1+json"
			d := b.JSON(map[string]any{"mediaType": mediaType, "artifactType": "application/x", "blobs": []any{gone}})
			d.MediaType = mediaType
			return d
		},
		"schema 1":        schema1("application/vnd.docker.distribution.manifest.v1+json"),
		"schema 1 signed": schema1("application/vnd.docker.distribution.manifest.v1+prettyjws"),
	}
	for name, root := range kinds {
		for _, below := range []bool{false, true} {
			b := bundletest.NewBuilder(t)
			d := root(b)
			if below {
				child := d
				child.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
				d = b.JSON(ocispec.Index{
					MediaType: ocispec.MediaTypeImageIndex,
					Manifests: []ocispec.Descriptor{child},
				})
				d.MediaType = ocispec.MediaTypeImageIndex
			}
			b.Item(bundle.Item{Kind: bundle.KindImage, Ref: "a.example/b:1", Name: "b", Descriptor: d})
			path := filepath.Join(t.TempDir(), "x.kkb")
			_, err := bundle.Create(t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{})
			if err == nil {
				r, openErr := bundle.Open(path)
				if openErr != nil {
					t.Fatal(openErr)
				}
				_, err = r.Verify(t.Context(), bundle.VerifyOptions{})
				_ = r.Close()
				t.Errorf("%s, below an index %v: written; verify says %v", name, below, err)
			} else if !strings.Contains(err.Error(), gone.Digest.String()) &&
				!strings.Contains(err.Error(), "withdrawn") {
				t.Errorf("%s, below an index %v: %v", name, below, err)
			}
		}
	}
}
