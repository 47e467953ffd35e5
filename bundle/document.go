package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/closure"
)

// The references under which a bundle carries what it was built from. Values files have their path as the cluster file
// spells it.
const (
	documentManifest = "manifest.yaml"
	documentCluster  = "cluster.yaml"
	documentLock     = "manifest.lock.yaml"
	documentClosure  = "closure.json"
	documentSBOM     = "sbom.cdx.json"
)

// maxProof bounds a closure and a bill of materials.
const maxProof = closure.MaxRecord

// A document is a file that a user wrote; the bundle carries it along.
type document struct {
	kind, ref string
	data      []byte
}

// put stores d as a file artifact and returns its item.
func (d document) put(ctx context.Context, c *bundle.Cache) (bundle.Item, error) {
	layer, err := putBlob(ctx, c, d.data)
	if err != nil {
		return bundle.Item{}, err
	}
	layer.MediaType = bundle.MediaTypeFileContent
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: d.ref}
	config, err := putBlob(ctx, c, []byte("{}"))
	if err != nil {
		return bundle.Item{}, err
	}
	config.MediaType = bundle.MediaTypeEmpty
	m, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: bundle.ArtifactTypeFile,
		Config:       config,
		Layers:       []ocispec.Descriptor{layer},
	})
	if err != nil {
		return bundle.Item{}, err
	}
	root, err := putBlob(ctx, c, m)
	root.MediaType, root.ArtifactType = ocispec.MediaTypeImageManifest, bundle.ArtifactTypeFile
	return bundle.Item{Kind: d.kind, Ref: d.ref, Name: d.ref, Descriptor: root}, err
}

func putBlob(ctx context.Context, c *bundle.Cache, data []byte) (ocispec.Descriptor, error) {
	want := digest.FromBytes(data)
	w, offset, err := c.Begin(ctx, want.String())
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer w.Close() // harmless after Commit; before it, the error that ended us is the one to tell
	if _, err := w.Write(data[offset:]); err != nil {
		return ocispec.Descriptor{}, err
	}
	return w.Commit(ctx, int64(len(data)), want)
}

// readDocument returns a document that build put into the bundle.
func readDocument(ctx context.Context, r *bundle.Catalog, kind, ref string) ([]byte, error) {
	item, ok := r.Find(kind, ref, "")
	if !ok {
		return nil, fmt.Errorf("the bundle carries no %s", ref)
	}
	layer, err := r.ContentOf(ctx, item)
	if err != nil {
		return nil, err
	}
	most := int64(maxFile)
	if kind == bundle.KindClosure || kind == bundle.KindSBOM {
		most = maxProof
	}
	data, err := r.ReadBlob(ctx, layer.Digest, most)
	return bytes.Clone(data), err
}
