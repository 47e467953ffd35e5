package builder

import (
	"context"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/encoders"
)

// coverage counts the gzip layers of the images by the encoders that the cache remembers. It reads manifests only.
func (b *builder) coverage(ctx context.Context, x bundle.Index) (encoders.Coverage, error) {
	w := layerWalk{read: b.cache.ReadBlob, seen: map[digest.Digest]bool{}}
	for _, it := range x.Items {
		if it.Kind != bundle.KindImage {
			continue
		}
		w.absent, w.descent = it.Absent, bundle.Descent{}
		if err := w.document(ctx, it.Descriptor, 0); err != nil {
			return encoders.Coverage{}, err
		}
	}
	return encoders.Open(b.Cache).Coverage(w.layers), nil
}

// A layerWalk collects the gzip layers of images, each once.
type layerWalk struct {
	read    func(ctx context.Context, d digest.Digest, most int64) ([]byte, error)
	absent  []digest.Digest // of the image
	descent bundle.Descent
	seen    map[digest.Digest]bool
	layers  []ocispec.Descriptor
}

func (w *layerWalk) document(ctx context.Context, d ocispec.Descriptor, depth int) error {
	if first, err := w.descent.Enter(d.Digest, depth); err != nil || !first {
		return err
	}
	data, err := w.read(ctx, d.Digest, bundle.MaxDocument)
	if err != nil {
		return err
	}
	var doc struct {
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := bundle.DecodeManifest(data, &doc); err != nil {
		return err
	}
	if err := w.descent.Count(len(doc.Manifests)); err != nil {
		return err
	}
	for _, l := range doc.Layers {
		if strings.HasSuffix(l.MediaType, "gzip") && !w.seen[l.Digest] {
			w.seen[l.Digest] = true
			w.layers = append(w.layers, l)
		}
	}
	for _, child := range doc.Manifests {
		if slices.Contains(w.absent, child.Digest) {
			continue
		}
		if err := w.document(ctx, child, depth+1); err != nil {
			return err
		}
	}
	return nil
}
