package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A bundle as an artifact in a registry. Its manifest is an OCI image manifest with this artifact type. Its config is
// the bundle's index.json, so that the config's digest is the bundle's identity. Its layers are the bundle's blobs, one
// each, without frames, so that registries store shared blobs once. Signatures of the bundle are layers, too.
const (
	ArtifactTypeBundle = "application/vnd.kkbundle.bundle.v1"
	MediaTypeIndex     = "application/vnd.kkbundle.index.v1+json"
	MediaTypeBlob      = "application/vnd.kkbundle.blob.v1"
	MediaTypeSignature = "application/vnd.dev.sigstore.bundle.v0.3+json"

	AnnotationEncoder = "io.kkbundle.encoder" // the encoder of the published file
	AnnotationLevel   = "io.kkbundle.level"   // the level's name: with the same encoder it gives the same bytes
)

// MaxSignatureSize is the maximal size in bytes of a signature published with a bundle.
const MaxSignatureSize = 4 << 20

const maxSignatures = 32

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

// A Published is a bundle as described by a manifest in a registry. Nothing in it is trusted: see Remote.
type Published struct {
	Index      ocispec.Descriptor            // index.json; its digest is the bundle's identity
	Blobs      []ocispec.Descriptor          // digest and size of each
	Signatures map[string]ocispec.Descriptor // by suffix, see Signature
	Encoder    string                        // encoder of the published file, "" if unknown
	Level      string                        // of that file
}

// Published returns the bundle's manifest as an artifact. The same bundle and signatures give the same bytes.
func (r *Reader) Published(signatures []Signature) ([]byte, error) {
	index, err := r.index.Marshal()
	if err != nil {
		return nil, err
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactTypeBundle,
		Config: ocispec.Descriptor{MediaType: MediaTypeIndex, Digest: r.identity, Size: int64(len(index))},
		Annotations: map[string]string{
			annotationTitle: r.index.Name, annotationVersion: r.index.Version, AnnotationEncoder: r.Encoder(), AnnotationLevel: r.Level().String(),
		},
	}
	for key, value := range m.Annotations {
		if value == "" {
			delete(m.Annotations, key)
		}
	}
	for _, b := range r.Blobs() {
		b.MediaType = MediaTypeBlob
		m.Layers = append(m.Layers, b)
	}
	for _, s := range signatures {
		if err := s.Check(); err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: MediaTypeSignature, Digest: digest.FromBytes(s.Data), Size: int64(len(s.Data)),
			Annotations: map[string]string{annotationTitle: s.Suffix},
		})
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("the bundle has %d blobs, but a manifest of at most 4 MiB, the limit of registries, holds about %d: publish it in parts, made with kkbundle copy --item or --platform",
			len(m.Layers), maxManifest/(len(data)/len(m.Layers)))
	}
	return data, nil
}

// ParsePublished reads a manifest that Reader.Published made.
func ParsePublished(manifest []byte) (Published, error) {
	if len(manifest) > maxManifest {
		return Published{}, fmt.Errorf("the manifest has %d bytes; at most %d are allowed", len(manifest), maxManifest)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return Published{}, fmt.Errorf("the manifest is not valid JSON of an image manifest: %w", err)
	}
	if m.ArtifactType != ArtifactTypeBundle || m.Config.MediaType != MediaTypeIndex {
		return Published{}, errors.New("not a bundle: it was not written by kkbundle publish")
	}
	if err := checkPublished(m.Config); err != nil {
		return Published{}, err
	}
	if m.Config.Size > format.MaxIndexSize {
		return Published{}, fmt.Errorf("index.json has %d bytes; at most %d are allowed", m.Config.Size, format.MaxIndexSize)
	}
	p := Published{
		Index: m.Config, Signatures: make(map[string]ocispec.Descriptor),
		Encoder: m.Annotations[AnnotationEncoder], Level: m.Annotations[AnnotationLevel],
	}
	for _, d := range m.Layers {
		if err := checkPublished(d); err != nil {
			return Published{}, err
		}
		switch d.MediaType {
		case MediaTypeBlob:
			p.Blobs = append(p.Blobs, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
		case MediaTypeSignature:
			suffix := d.Annotations[annotationTitle]
			if !signatureGrammar.MatchString(suffix) || d.Size > MaxSignatureSize || len(p.Signatures) == maxSignatures {
				return Published{}, fmt.Errorf("%s is not a valid signature: it has the name %q and %d bytes", d.Digest, shortened(suffix), d.Size)
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
