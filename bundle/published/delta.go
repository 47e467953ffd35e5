package published

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// A delta in a registry is an OCI image manifest with this artifact type, whose subject is a published bundle. Its only
// layer is the file. Its annotations are the identities of the bundles.
const (
	ArtifactTypeDelta = "application/vnd.kkbundle.delta.v1"
	MediaTypeDelta    = "application/vnd.kkbundle.delta.v1"

	AnnotationOld = "io.kkbundle.delta.old" // the bundle that the delta was made against
	AnnotationNew = "io.kkbundle.delta.new" // the bundle that it makes
)

// A Delta is a delta as described by a manifest in a registry. Nothing in it is trusted.
type Delta struct {
	Old, New digest.Digest      // identities
	File     ocispec.Descriptor // digest and size
}

// Manifest returns the delta's manifest. The subject is the manifest or index of a published bundle.
func (d Delta) Manifest(subject ocispec.Descriptor) ([]byte, error) {
	return json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactTypeDelta,
		Config:       ocispec.DescriptorEmptyJSON, Subject: &subject,
		Layers:      []ocispec.Descriptor{{MediaType: MediaTypeDelta, Digest: d.File.Digest, Size: d.File.Size}},
		Annotations: map[string]string{AnnotationOld: d.Old.String(), AnnotationNew: d.New.String()},
	})
}

// ParseDelta reads a manifest of a delta, which must be attached to the subject.
func ParseDelta(manifest []byte, subject digest.Digest) (Delta, error) {
	var m ocispec.Manifest
	if len(manifest) > bundle.MaxManifest || json.Unmarshal(manifest, &m) != nil ||
		m.ArtifactType != ArtifactTypeDelta {
		return Delta{}, errors.New("not a delta: it was not written by kkbundle publish")
	}
	if m.Subject == nil || m.Subject.Digest != subject {
		return Delta{}, errors.New("the delta is attached to another bundle")
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != MediaTypeDelta {
		return Delta{}, fmt.Errorf("the delta has %d layers of other kinds", len(m.Layers))
	}
	if err := checkPublished(m.Layers[0]); err != nil {
		return Delta{}, err
	}
	d := Delta{File: ocispec.Descriptor{Digest: m.Layers[0].Digest, Size: m.Layers[0].Size}}
	for key, to := range map[string]*digest.Digest{AnnotationOld: &d.Old, AnnotationNew: &d.New} {
		*to = digest.Digest(m.Annotations[key])
		if _, err := format.ParseDigest(*to); err != nil {
			return Delta{}, fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	return d, nil
}
