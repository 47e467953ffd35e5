package bundle_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/closure"
	"github.com/kkbundle/kkbundle/proof/sbom"
)

// nested returns a bundle with an image of seven levels of indexes, each of which names the next one many times: 40 KB
// with more paths than anybody can walk.
func nested(t *testing.T) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Image("docker.io/library/leaf:1", bundletest.RandomImage(t, 1, 1, 100))
	child := b.Index.Items[0].Descriptor
	child.Platform = &ocispec.Platform{OS: "linux", Architecture: "s390x"}
	b.Index.Items = nil
	for range 7 {
		x := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
		x.SchemaVersion = 2
		for range 40 {
			x.Manifests = append(x.Manifests, child)
		}
		child = b.JSON(x)
		child.MediaType = x.MediaType
	}
	b.Item(bundle.Item{Kind: bundle.KindImage, Ref: "docker.io/library/nested:1", Name: "nested", Descriptor: child})
	return b.Bundle()
}

// TestNestedIndexes has everything that walks over indexes read each of them once.
func TestNestedIndexes(t *testing.T) {
	t.Parallel()
	b := nested(t)
	it := b.Reader.Index().Items[0]
	amd64 := func(p string) bool { return p == "linux/amd64" }
	read := func(ctx context.Context, d digest.Digest, most int64) ([]byte, error) {
		return b.Reader.ReadBlob(ctx, d, most)
	}
	for name, walk := range map[string]func(ctx context.Context) error{
		"ForPlatform": func(ctx context.Context) error {
			if _, err := b.Reader.ForPlatform(ctx, it, amd64); err == nil ||
				!strings.Contains(err.Error(), "several platforms") {
				return fmt.Errorf("a platform that is not there: %w", err)
			}
			_, err := b.Reader.ForPlatform(ctx, it, func(p string) bool { return p == "linux/s390x" })
			return err
		},
		"Narrow": func(ctx context.Context) error {
			if _, left, err := b.Reader.Narrow(ctx, it, amd64); err != nil || left {
				return fmt.Errorf("left %v, %w", left, err)
			}
			return nil
		},
		"Survey": func(ctx context.Context) error {
			_, err := b.Reader.Survey(ctx)
			return err
		},
		"closure": func(ctx context.Context) error {
			items, err := closure.Contents(ctx, []bundle.Item{it}, read)
			if err == nil && (len(items) != 1 || len(items[0].Platforms) != 1) {
				err = fmt.Errorf("items %+v", items)
			}
			return err
		},
		"sbom": func(ctx context.Context) error {
			_, err := sbom.New(ctx, b.Reader.Index(), &manifest.Lock{}, read)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := walk(t.Context()); err != nil { // a walk of every path reaches the test's own time limit
				t.Error(err)
			}
		})
	}
}

func TestDescent(t *testing.T) {
	t.Parallel()
	var d bundle.Descent
	one := digest.FromString("one")
	if first, err := d.Enter(one, 0); err != nil || !first {
		t.Errorf("%v, %v", first, err)
	}
	if first, err := d.Enter(one, 1); err != nil || first {
		t.Errorf("again: %v, %v", first, err)
	}
	if _, err := d.Enter(digest.FromString("deep"), 9); err == nil {
		t.Error("nine levels were entered")
	}
	if err := d.Count(1 << 20); err != nil {
		t.Error(err)
	}
	if err := d.Count(1); err == nil {
		t.Error("too many references were counted")
	}
}

// TestManifestOfManyValues refuses a document that would take a hundred times its size.
func TestManifestOfManyValues(t *testing.T) {
	t.Parallel()
	var x ocispec.Index
	if err := bundle.DecodeManifest([]byte(`{"manifests":[`+strings.Repeat("{},", 1<<19)+`{}]}`), &x); err == nil ||
		!strings.Contains(err.Error(), "values") {
		t.Errorf("%d manifests, %v", len(x.Manifests), err)
	}
}
