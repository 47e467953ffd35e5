package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// ContentOf returns the descriptor of the content of a file or chart item: the one layer of a file, the archive of a
// chart. r.Blob of its digest returns the bytes. Its annotations include AnnotationMode if the artifact has one.
func (c *Catalog) ContentOf(ctx context.Context, it Item) (ocispec.Descriptor, error) {
	fail := func(err error) (ocispec.Descriptor, error) {
		return ocispec.Descriptor{}, fmt.Errorf("content of %s: %w", it, err)
	}
	if it.Kind == KindImage || classOf(it.Descriptor.MediaType) != classManifest {
		return fail(errors.New("only items stored as one artifact have a single content"))
	}
	data, err := c.ReadBlob(ctx, it.Descriptor.Digest, MaxManifest)
	if err != nil {
		return fail(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fail(err)
	}
	layers := m.Layers
	if it.Kind == KindChart { // a chart may have its provenance beside the archive
		layers = slices.DeleteFunc(slices.Clone(layers),
			func(d ocispec.Descriptor) bool { return d.MediaType != MediaTypeChartContent })
	}
	if len(layers) != 1 {
		return fail(fmt.Errorf("the artifact has %d layers with content instead of one", len(layers)))
	}
	layer := layers[0]
	s, err := format.ParseDigest(layer.Digest)
	if err != nil {
		return fail(err)
	}
	if size, ok, err := c.blobs.lookup(ctx, s); err != nil || !ok || size != layer.Size {
		return fail(&DamageError{
			Blob: layer.Digest, Offset: -1,
			Reason: "the content is missing, or its size differs from the manifest", Err: err,
		})
	}
	if mode, ok := m.Annotations[AnnotationMode]; ok && layer.Annotations[AnnotationMode] == "" {
		layer.Annotations = maps.Clone(layer.Annotations)
		if layer.Annotations == nil {
			layer.Annotations = make(map[string]string)
		}
		layer.Annotations[AnnotationMode] = mode
	}
	return layer, nil
}
