package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/cache"
)

// The references of the documents of a  Values files have their path as the cluster file spells it.
const (
	DocumentManifest = "manifest.yaml"
	DocumentCluster  = "cluster.yaml"
	DocumentLock     = "manifest.lock.yaml"
	DocumentClosure  = "closure.json"
	DocumentSBOM     = "sbom.cdx.json"
	// DocumentCatalog is the catalog of the program that built the bundle. Catalogs that a cluster file names have
	// their own paths and count beside it.
	DocumentCatalog = "kkbundle-catalog.yaml"
	// DocumentHooks begins the references of scripts that install runs on hosts.
	DocumentHooks = "hooks/"
)

// Limits of documents in bytes: of a file that a user wrote, and of a lock, a closure or a bill of materials.
const (
	MaxDocument = 4 << 20
	MaxProof    = 64 << 20
)

// A Document is a file that a bundle was built from, or a proof about the
type Document struct {
	Kind, Ref string
	Data      []byte
}

// Put stores d as a file artifact in the cache and returns its item.
func (d Document) Put(ctx context.Context, c *cache.Cache) (Item, error) {
	layer, err := putBlob(ctx, c, d.Data)
	if err != nil {
		return Item{}, err
	}
	layer.MediaType = MediaTypeFileContent
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: d.Ref}
	config, err := putBlob(ctx, c, []byte("{}"))
	if err != nil {
		return Item{}, err
	}
	config.MediaType = MediaTypeEmpty
	m, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactTypeFile,
		Config:       config,
		Layers:       []ocispec.Descriptor{layer},
	})
	if err != nil {
		return Item{}, err
	}
	root, err := putBlob(ctx, c, m)
	root.MediaType, root.ArtifactType = ocispec.MediaTypeImageManifest, ArtifactTypeFile
	return Item{Kind: d.Kind, Ref: d.Ref, Name: d.Ref, Descriptor: root}, err
}

func putBlob(ctx context.Context, c *cache.Cache, data []byte) (ocispec.Descriptor, error) {
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

// Document returns the data of a document of the bundle.
func (c *Catalog) Document(ctx context.Context, kind, ref string) ([]byte, error) {
	item, ok := c.Find(kind, ref, "")
	if !ok {
		return nil, fmt.Errorf("the bundle carries no %s", ref)
	}
	layer, err := c.ContentOf(ctx, item)
	if err != nil {
		return nil, err
	}
	most := int64(MaxDocument)
	if kind == KindLock || kind == KindClosure || kind == KindSBOM {
		most = MaxProof
	}
	data, err := c.ReadBlob(ctx, layer.Digest, most)
	return bytes.Clone(data), err
}
