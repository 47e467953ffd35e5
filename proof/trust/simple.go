package trust

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
)

// simpleType is the only type of payload written by cosign and compatible programs.
const simpleType = "cosign container image signature"

// A SimpleSignature is a layer of a manifest with simple signatures.
type SimpleSignature struct {
	Payload     []byte            // the layer's bytes
	Annotations map[string]string // the layer's annotations, which hold the signature
}

// VerifySimpleSigning checks that the key signed the payload and that the payload is about the digest. It returns the
// image name in the payload (critical.identity.docker-reference). Like cosign, it does not compare the name: copying
// between registries changes names, and only the digest decides what runs.
//
// The error matches ErrWrongKey, ErrKeyless, ErrOtherDigest or ErrMalformed.
func VerifySimpleSigning(k *PublicKey, s SimpleSignature, manifest digest.Digest) (name string, err error) {
	text := s.Annotations[AnnotationSignature]
	if text == "" {
		return "", fmt.Errorf("%w: there is no annotation %s", ErrMalformed, AnnotationSignature)
	}
	signature, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%w: the signature is not base64", ErrMalformed)
	}
	if len(s.Payload) > MaxSignature {
		return "", fmt.Errorf("%w: the payload has %d bytes", ErrMalformed, len(s.Payload))
	}
	if err := k.Verify(s.Payload, signature); err != nil {
		if s.Annotations[AnnotationCertificate] != "" {
			return "", ErrKeyless
		}
		return "", err
	}
	return SimplePayload(s.Payload, manifest)
}

// SimplePayload checks that a payload whose signature is valid is about the digest, and returns the image name in it.
func SimplePayload(data []byte, manifest digest.Digest) (name string, err error) {
	var payload struct {
		Critical struct {
			Identity struct {
				Reference string `json:"docker-reference"`
			} `json:"identity"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	if err := unmarshal(data, &payload); err != nil {
		return "", err
	}
	if got := payload.Critical.Type; got != simpleType {
		return "", fmt.Errorf("%w: the payload is of type %.60q, not %q", ErrMalformed, got, simpleType)
	}
	if got := payload.Critical.Image.Digest; got != manifest.String() {
		return "", fmt.Errorf("%w: %.80q", ErrOtherDigest, got)
	}
	return payload.Critical.Identity.Reference, nil
}

// unmarshal reads one JSON document and fails if anything follows it.
func unmarshal(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(bytes.TrimSpace(data[d.InputOffset():])) > 0 {
		return fmt.Errorf("%w: data after the JSON document", ErrMalformed)
	}
	return nil
}
