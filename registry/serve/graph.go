package serve

import (
	"cmp"
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

const (
	maxManifest  = 4 << 20 // bytes: the limit of registries
	maxKeptRefs  = 1 << 17 // cached references of manifests, about 100 bytes each
	maxDocuments = 1 << 16 // manifests read for one request

	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// isDocument reports whether a media type is that of an index or manifest.
func isDocument(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, dockerList, dockerManifest:
		return true
	}
	return false
}

// A document holds the cached facts about an index or manifest.
type document struct {
	children  []ocispec.Descriptor // media type, digest, size
	mediaType string               // its own, if that of an index or manifest
	subject   digest.Digest
	referrer  ocispec.Descriptor // its entry in a referrers list, if it has a subject
}

// document reads an index or manifest, or returns the cached one.
func (b *book) document(ctx context.Context, d ocispec.Descriptor) (*document, error) {
	b.mu.Lock()
	doc := b.docs[d.Digest]
	b.mu.Unlock()
	if doc != nil {
		return doc, nil
	}
	data, err := b.read(ctx, d.Digest, maxManifest)
	if err != nil {
		return nil, err
	}
	if doc, err = parseDocument(data, d); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refs += len(doc.children) + 1; b.refs > maxKeptRefs {
		clear(b.docs)
		b.refs = len(doc.children) + 1
	}
	b.docs[d.Digest] = doc
	return doc, nil
}

func parseDocument(data []byte, d ocispec.Descriptor) (*document, error) {
	var m struct {
		MediaType    string               `json:"mediaType"`
		ArtifactType string               `json:"artifactType"`
		Manifests    []ocispec.Descriptor `json:"manifests"`
		Config       *ocispec.Descriptor  `json:"config"`
		Layers       []ocispec.Descriptor `json:"layers"`
		Subject      *ocispec.Descriptor  `json:"subject"`
		Annotations  map[string]string    `json:"annotations"`
	}
	if err := bundle.DecodeManifest(data, &m); err != nil {
		return nil, err
	}
	doc := &document{}
	if isDocument(m.MediaType) {
		d.MediaType, doc.mediaType = m.MediaType, m.MediaType
	}
	all := append(m.Manifests, m.Layers...)
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	for _, c := range all {
		doc.children = append(doc.children, ocispec.Descriptor{MediaType: c.MediaType, Digest: c.Digest, Size: c.Size})
	}
	if m.Subject != nil {
		doc.subject = m.Subject.Digest
		doc.referrer = ocispec.Descriptor{
			MediaType: d.MediaType, Digest: d.Digest, Size: int64(len(data)), ArtifactType: m.ArtifactType,
			Annotations: m.Annotations,
		}
		if m.ArtifactType == "" && m.Config != nil {
			doc.referrer.ArtifactType = m.Config.MediaType
		}
	}
	return doc, nil
}

// walk visits every blob of the bundle below the roots, once per media type of its references, until visit returns
// false. Unreadable documents are skipped; the first such error is returned unless visit ended the walk.
func (b *book) walk(ctx context.Context, roots []ocispec.Descriptor,
	visit func(ocispec.Descriptor, *document) bool,
) error {
	type reference struct {
		digest    digest.Digest
		mediaType string
	}
	var failed error
	seen := make(map[reference]bool)
	stack := append([]ocispec.Descriptor(nil), roots...)
	for documents := 0; len(stack) > 0; {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[reference{d.Digest, d.MediaType}] {
			continue
		}
		seen[reference{d.Digest, d.MediaType}] = true
		if _, ok := b.reader.Stat(d.Digest); !ok {
			continue
		}
		if !isDocument(d.MediaType) {
			if !visit(d, nil) {
				return nil
			}
			continue
		}
		if documents++; documents > maxDocuments {
			return fmt.Errorf("more than %d manifests belong to one name", maxDocuments)
		}
		doc, err := b.document(ctx, d)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = cmp.Or(failed, err)
			doc = &document{}
		}
		if !visit(d, doc) {
			return nil
		}
		stack = append(stack, doc.children...)
	}
	return failed
}
