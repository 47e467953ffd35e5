package trust

import (
	"bytes"
	"crypto"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

const (
	bundlePrefix = "application/vnd.dev.sigstore.bundle" // …+json;version=0.1 and 0.2 before, ….v0.3+json now
	inToto       = "application/vnd.in-toto+json"        // DSSE's payload type
	maxSubjects  = 10_000                                // in a statement; bounds the search
)

// A Claim is a key's statement about an artifact.
type Claim struct {
	// Predicate is the type of an in-toto statement, such as PredicateSign or https://slsa.dev/provenance/v1; "" if the
	// bytes themselves were signed.
	Predicate string
	// Content is the statement's predicate, JSON; nil if there is none.
	Content json.RawMessage
}

// IsSignature reports whether the claim is a plain signature of the artifact. An attestation by the same key is not: it
// may say that the artifact must not be used.
func (c Claim) IsSignature() bool { return c.Predicate == "" || c.Predicate == PredicateSign }

// sigstoreBundle holds the fields of sigstore_bundle.proto in use, in JSON form.
type sigstoreBundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		Certificate *json.RawMessage `json:"certificate"`
		Chain       *json.RawMessage `json:"x509CertificateChain"`
		PublicKey   struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope *dsse             `json:"dsseEnvelope"`
	Message  *messageSignature `json:"messageSignature"`
}

type messageSignature struct {
	Digest    messageDigest `json:"messageDigest"`
	Signature []byte        `json:"signature"`
}

// messageDigest helps to find the signed artifact. It is unverified.
type messageDigest struct {
	Algorithm string `json:"algorithm,omitempty"`
	Digest    []byte `json:"digest,omitempty"`
}

type dsse struct {
	Payload     []byte `json:"payload"`
	PayloadType string `json:"payloadType"`
	Signatures  []struct {
		Sig []byte `json:"sig"`
	} `json:"signatures"`
}

// statement is an in-toto statement (in-toto attestation framework, spec/v1/statement.md; v0.1 has the same fields as
// used here).
type statement struct {
	Type    string `json:"_type"`
	Subject []struct {
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// VerifyBundle checks that the key made the signature of a Sigstore bundle, and that it is about the artifact. An
// artifact is the bytes with the digest: an image's manifest or index. For an image, the caller must also check
// Claim.IsSignature.
//
// The error matches ErrWrongKey, ErrKeyless, ErrOtherDigest or ErrMalformed.
func VerifyBundle(k *PublicKey, bundle, artifact []byte) (Claim, error) {
	b, err := parseBundle(bundle)
	if err != nil {
		return Claim{}, err
	}
	claim, err := b.verify(k, artifact)
	if err != nil && b.keyless() {
		return Claim{}, ErrKeyless
	}
	return claim, err
}

func parseBundle(data []byte) (*sigstoreBundle, error) {
	if len(data) > MaxSignature {
		return nil, fmt.Errorf("%w: the bundle has %d bytes", ErrMalformed, len(data))
	}
	var b sigstoreBundle
	if err := unmarshal(data, &b); err != nil {
		return nil, err
	}
	if b.MediaType == "" {
		return nil, fmt.Errorf("%w: not a Sigstore bundle; cosign 2 writes one with --new-bundle-format", ErrMalformed)
	}
	if !strings.HasPrefix(b.MediaType, bundlePrefix) {
		return nil, fmt.Errorf("%w: %.80q is not a Sigstore bundle", ErrMalformed, b.MediaType)
	}
	return &b, nil
}

// keyless reports whether the bundle has a certificate in place of a key.
func (b *sigstoreBundle) keyless() bool {
	return b.Material.Certificate != nil || b.Material.Chain != nil
}

func (b *sigstoreBundle) verify(k *PublicKey, artifact []byte) (Claim, error) {
	switch {
	case b.Envelope != nil && b.Message != nil:
		return Claim{}, fmt.Errorf("%w: there is an envelope and a message signature", ErrMalformed)
	case b.Envelope != nil:
		return b.Envelope.verify(k, artifact)
	case b.Message == nil:
		return Claim{}, fmt.Errorf("%w: there is no signature", ErrMalformed)
	}
	if err := b.Message.about(artifact); err != nil {
		return Claim{}, err
	}
	return Claim{}, k.Verify(artifact, b.Message.Signature)
}

// about compares the digest, if any, to distinguish a signature of another artifact from one by another key.
func (m *messageSignature) about(artifact []byte) error {
	for _, h := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		if m.Digest.Algorithm == sigstoreName(h) && !bytes.Equal(m.Digest.Digest, hashed(h, artifact)) {
			return fmt.Errorf("%w: %s %.128x", ErrOtherDigest, h, m.Digest.Digest)
		}
	}
	return nil
}

// sigstoreName returns the name of a hash in sigstore_common.proto.
func sigstoreName(h crypto.Hash) string {
	switch h {
	case crypto.SHA384:
		return "SHA2_384"
	case crypto.SHA512:
		return "SHA2_512"
	}
	return "SHA2_256"
}

func (e *dsse) verify(k *PublicKey, artifact []byte) (Claim, error) {
	// Exactly one signature, as in the bundle's specification: with several, claims of different keys would be mixed
	// up.
	if len(e.Signatures) != 1 {
		return Claim{}, fmt.Errorf("%w: the envelope has %d signatures, not one", ErrMalformed, len(e.Signatures))
	}
	if err := k.Verify(preAuthEncoding(e.PayloadType, e.Payload), e.Signatures[0].Sig); err != nil {
		return Claim{}, err
	}
	if e.PayloadType != inToto {
		return Claim{}, fmt.Errorf("%w: the envelope holds %.80q, not %s", ErrMalformed, e.PayloadType, inToto)
	}
	var s statement
	if err := unmarshal(e.Payload, &s); err != nil {
		return Claim{}, err
	}
	if s.Type != "https://in-toto.io/Statement/v1" && s.Type != "https://in-toto.io/Statement/v0.1" {
		return Claim{}, fmt.Errorf("%w: the statement is of type %.80q", ErrMalformed, s.Type)
	}
	if s.PredicateType == "" || len(s.Subject) > maxSubjects {
		return Claim{}, fmt.Errorf("%w: the statement has no predicate type, or more than %d subjects", ErrMalformed,
			maxSubjects)
	}
	want := digest.FromBytes(artifact).Encoded()
	for _, subject := range s.Subject {
		if subject.Digest["sha256"] == want {
			return Claim{Predicate: s.PredicateType, Content: s.Predicate}, nil
		}
	}
	if len(s.Subject) == 0 {
		return Claim{}, fmt.Errorf("%w: the statement has no subject", ErrOtherDigest)
	}
	return Claim{}, fmt.Errorf("%w: %.80q", ErrOtherDigest, "sha256:"+s.Subject[0].Digest["sha256"])
}

// preAuthEncoding returns the bytes that a DSSE signature signs (DSSE protocol.md, PAE).
func preAuthEncoding(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}
