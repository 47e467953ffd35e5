// Package published describes a bundle as an artifact of a registry, and a delta between two.
package published

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// A bundle as an artifact in a registry. Its manifest is an OCI image manifest with this artifact type. Its config is
// the bundle's index.json, so that the config's digest is the bundle's identity. Its layers are the bundle's blobs, one
// each, without frames, so that registries store shared blobs once. Signatures of the bundle are layers, too.
//
// A bundle with more blobs than one manifest can list is an OCI image index with the same artifact type. Its manifests
// have the artifact type of blobs, the same config, and a share of the layers each.
const (
	ArtifactTypeBundle = "application/vnd.kkbundle.bundle.v1"
	ArtifactTypeBlobs  = "application/vnd.kkbundle.blobs.v1"
	MediaTypeIndex     = "application/vnd.kkbundle.index.v1+json"
	MediaTypeBlob      = "application/vnd.kkbundle.blob.v1"
	MediaTypeSignature = "application/vnd.dev.sigstore.bundle.v0.3+json"

	AnnotationEncoder = "io.kkbundle.encoder" // the encoder of the published file
	AnnotationLevel   = "io.kkbundle.level"   // the level's name: with the same encoder it gives the same bytes
)

// MaxSignatureSize is the maximal size in bytes of a signature published with a bundle.
const MaxSignatureSize = 4 << 20

const (
	maxSignatures = 32
	manifestBlobs = 20_000    // of one manifest of an index: below 4 MiB, whatever their sizes
	maxManifests  = 64        // of an index
	maxListing    = 128 << 20 // bytes; kkbundle.json, of at most 64 MiB, has the same blobs in fewer bytes
)

// signatureGrammar is the grammar of a signature's file name after "NAME.kkb.".
var signatureGrammar = regexp.MustCompile(`^(?:[a-z][a-z0-9-]{0,62}\.)?sigstore\.json$`)

// A Signature is a file beside a bundle that signs the bundle's identity.
type Signature struct {
	Suffix string // file name after "NAME.kkb.": sigstore.json, SIGNER.sigstore.json
	Data   []byte
}

// Check returns an error if the signature cannot be published.
func (s Signature) Check() error {
	switch {
	case !signatureGrammar.MatchString(s.Suffix):
		return fmt.Errorf("signature %q: wrong file name: want sigstore.json or SIGNER.sigstore.json", s.Suffix)
	case len(s.Data) > MaxSignatureSize:
		return fmt.Errorf("signature %s has %d bytes; at most %d are allowed", s.Suffix, len(s.Data), MaxSignatureSize)
	}
	return nil
}

// A Bundle is a bundle as described by a manifest in a registry. Nothing in it is trusted: see bundle.Remote.
type Bundle struct {
	Index      ocispec.Descriptor            // index.json; its digest is the bundle's identity
	Blobs      []ocispec.Descriptor          // digest and size of each
	Signatures map[string]ocispec.Descriptor // by suffix, see Signature
	Encoder    string                        // encoder of the published file, "" if unknown
	Level      string                        // of that file
}

// A Documents is the documents that describe a bundle in a registry.
type Documents struct {
	MediaType string   // of Root
	Root      []byte   // the manifest, or the index of Manifests
	Manifests [][]byte // nil if Root is a manifest
}

// Of returns the documents of the bundle as an artifact. The same bundle and signatures give the same bytes. A
// bundle whose blobs one manifest cannot list gets an index.
func Of(r *bundle.Reader, signatures []Signature) (Documents, error) {
	return documents(r, signatures, manifestBlobs)
}

// documents is Of. An index has most blobs in each manifest.
func documents(r *bundle.Reader, signatures []Signature, most int) (Documents, error) {
	m, err := allBlobs(r)
	if err != nil {
		return Documents{}, err
	}
	signed := make([]ocispec.Descriptor, 0, len(signatures))
	for _, s := range signatures {
		if err := s.Check(); err != nil {
			return Documents{}, err
		}
		signed = append(signed, ocispec.Descriptor{
			MediaType: MediaTypeSignature, Digest: digest.FromBytes(s.Data), Size: int64(len(s.Data)),
			Annotations: map[string]string{ocispec.AnnotationTitle: s.Suffix},
		})
	}
	blobs := m.Layers
	if len(blobs) <= most {
		m.Layers = slices.Concat(blobs, signed)
		root, err := json.Marshal(m)
		return Documents{MediaType: m.MediaType, Root: root}, err
	}
	out := Documents{MediaType: ocispec.MediaTypeImageIndex}
	index := ocispec.Index{
		Versioned: m.Versioned, MediaType: out.MediaType, ArtifactType: m.ArtifactType,
		Annotations: m.Annotations,
	}
	for share := range slices.Chunk(blobs, most) {
		m := ocispec.Manifest{
			Versioned: m.Versioned, MediaType: m.MediaType, ArtifactType: ArtifactTypeBlobs,
			Config: m.Config, Layers: slices.Concat(share, signed),
		}
		signed = nil // they are in the first manifest
		data, err := json.Marshal(m)
		if err != nil {
			return Documents{}, err
		}
		out.Manifests = append(out.Manifests, data)
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: digest.FromBytes(data),
			Size: int64(len(data)),
		})
	}
	if len(index.Manifests) > maxManifests {
		return Documents{}, fmt.Errorf(
			"the bundle has %d blobs; at most %d can be published: split it with kkbundle copy --item or --platform",
			len(blobs), most*maxManifests)
	}
	out.Root, err = json.Marshal(index)
	return out, err
}

// allBlobs returns the manifest of all blobs, of any size.
func allBlobs(r *bundle.Reader) (ocispec.Manifest, error) {
	index, err := r.Index().Marshal()
	if err != nil {
		return ocispec.Manifest{}, err
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactTypeBundle,
		Config:       ocispec.Descriptor{MediaType: MediaTypeIndex, Digest: r.Digest(), Size: int64(len(index))},
		Annotations: map[string]string{
			ocispec.AnnotationTitle: r.Index().Name, ocispec.AnnotationVersion: r.Index().Version,
			AnnotationEncoder: r.Encoder(), AnnotationLevel: r.Level().String(),
		},
	}
	maps.DeleteFunc(m.Annotations, func(_, value string) bool { return value == "" })
	for _, b := range r.Blobs() {
		b.MediaType = MediaTypeBlob
		m.Layers = append(m.Layers, b)
	}
	return m, nil
}

// Listing returns the digests of the bundle's blobs, for ParseListing: the manifest that publish writes for a bundle
// with few blobs, without signatures.
func Listing(r *bundle.Reader) ([]byte, error) {
	m, err := allBlobs(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// ParseListing reads a document that Listing made.
func ParseListing(data []byte) (Bundle, error) {
	return parseManifest(data, ArtifactTypeBundle, maxListing)
}

// Parse reads the documents that Of made. manifest returns a manifest of an index.
func Parse(root []byte, manifest func(ocispec.Descriptor) ([]byte, error)) (Bundle, error) {
	var x ocispec.Index
	if len(root) > bundle.MaxManifest || json.Unmarshal(root, &x) != nil || x.MediaType != ocispec.MediaTypeImageIndex {
		return parseManifest(root, ArtifactTypeBundle, bundle.MaxManifest)
	}
	if x.ArtifactType != ArtifactTypeBundle || len(x.Manifests) == 0 {
		return Bundle{}, errNotPublished
	}
	if len(x.Manifests) > maxManifests {
		return Bundle{}, fmt.Errorf("the index has %d manifests; at most %d are allowed", len(x.Manifests),
			maxManifests)
	}
	var all Bundle
	for i, d := range x.Manifests {
		if err := checkPublished(d); err != nil {
			return Bundle{}, err
		}
		data, err := manifest(d)
		if err != nil {
			return Bundle{}, err
		}
		p, err := parseManifest(data, ArtifactTypeBlobs, bundle.MaxManifest)
		if err != nil {
			return Bundle{}, fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		if i == 0 {
			all = p
			continue
		}
		if p.Index.Digest != all.Index.Digest || p.Index.Size != all.Index.Size {
			return Bundle{}, fmt.Errorf("manifest %s has blobs of another bundle, %s", d.Digest, p.Index.Digest)
		}
		all.Blobs = append(all.Blobs, p.Blobs...)
		maps.Copy(all.Signatures, p.Signatures)
	}
	all.Encoder, all.Level = x.Annotations[AnnotationEncoder], x.Annotations[AnnotationLevel]
	return all, nil
}

var errNotPublished = errors.New("not a bundle: it was not written by kkbundle publish")

// parseManifest reads a manifest of at most limit bytes.
func parseManifest(manifest []byte, artifactType string, limit int) (Bundle, error) {
	if len(manifest) > limit {
		return Bundle{}, fmt.Errorf("the manifest has %d bytes; at most %d are allowed", len(manifest), limit)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return Bundle{}, fmt.Errorf("the manifest is not valid JSON of an image manifest: %w", err)
	}
	if m.ArtifactType != artifactType || m.Config.MediaType != MediaTypeIndex {
		return Bundle{}, errNotPublished
	}
	if err := checkPublished(m.Config); err != nil {
		return Bundle{}, err
	}
	if m.Config.Size > format.MaxIndexSize {
		return Bundle{}, fmt.Errorf("index.json has %d bytes; at most %d are allowed", m.Config.Size,
			format.MaxIndexSize)
	}
	p := Bundle{
		Index: m.Config, Signatures: make(map[string]ocispec.Descriptor),
		Encoder: m.Annotations[AnnotationEncoder], Level: m.Annotations[AnnotationLevel],
	}
	for _, d := range m.Layers {
		if err := checkPublished(d); err != nil {
			return Bundle{}, err
		}
		switch d.MediaType {
		case MediaTypeBlob:
			p.Blobs = append(p.Blobs, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
		case MediaTypeSignature:
			suffix := d.Annotations[ocispec.AnnotationTitle]
			if !signatureGrammar.MatchString(suffix) || d.Size > MaxSignatureSize ||
				len(p.Signatures) == maxSignatures {
				return Bundle{}, fmt.Errorf("%s is not a valid signature: it has the name %q and %d bytes", d.Digest,
					shortened(suffix), d.Size)
			}
			p.Signatures[suffix] = ocispec.Descriptor{Digest: d.Digest, Size: d.Size}
		} // additions of later versions are ignored
	}
	return p, nil
}

func checkPublished(d ocispec.Descriptor) error {
	if _, err := format.ParseDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > format.MaxSize {
		return fmt.Errorf("size %d of %s is out of range", d.Size, d.Digest)
	}
	return nil
}

// shortened bounds the length of foreign text in a message.
func shortened(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
