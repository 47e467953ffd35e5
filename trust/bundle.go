package trust

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

const (
	bundlePrefix = "application/vnd.dev.sigstore.bundle" // …+json;version=0.1 and 0.2 before, ….v0.3+json now
	inToto       = "application/vnd.in-toto+json"        // DSSE's payload type
	maxSubjects  = 10_000                                // in a statement; bounds the time to look through them
)

// A Claim is what a key said about an artifact.
type Claim struct {
	// Predicate is the type of an in-toto statement, such as PredicateSign or https://slsa.dev/provenance/v1; "" where
	// the bytes themselves were signed.
	Predicate string
	// Content is the statement's predicate, JSON; nil if there is none.
	Content json.RawMessage
}

// IsSignature tells whether the claim is that the artifact is the signer's, and nothing more specific. An attestation by
// the same key is not: it may say that the artifact must not be used.
func (c Claim) IsSignature() bool { return c.Predicate == "" || c.Predicate == PredicateSign }

// sigstoreBundle has what matters of sigstore_bundle.proto in its JSON form.
type sigstoreBundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		Certificate *json.RawMessage `json:"certificate"`
		Chain       *json.RawMessage `json:"x509CertificateChain"`
	} `json:"verificationMaterial"`
	Envelope *dsse `json:"dsseEnvelope"`
	Message  *struct {
		Digest struct {
			Algorithm string `json:"algorithm"`
			Digest    []byte `json:"digest"`
		} `json:"messageDigest"`
		Signature []byte `json:"signature"`
	} `json:"messageSignature"`
}

type dsse struct {
	Payload     []byte `json:"payload"`
	PayloadType string `json:"payloadType"`
	Signatures  []struct {
		Sig []byte `json:"sig"`
	} `json:"signatures"`
}

// statement is in-toto's (in-toto attestation framework, spec/v1/statement.md; v0.1 differs in nothing that is read here).
type statement struct {
	Type    string `json:"_type"`
	Subject []struct {
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// VerifyBundle checks a Sigstore bundle: that the key made its signature, and that it is about the artifact. An artifact
// is the bytes that have the digest: an image's manifest or index. For an image, the caller wants Claim.IsSignature too.
//
// The error matches ErrWrongKey, ErrKeyless, ErrOtherDigest or ErrMalformed.
func VerifyBundle(k *PublicKey, bundle, artifact []byte) (Claim, error) {
	if len(bundle) > MaxSignature {
		return Claim{}, fmt.Errorf("%w: a bundle of %d bytes", ErrMalformed, len(bundle))
	}
	var b sigstoreBundle
	if err := unmarshal(bundle, &b); err != nil {
		return Claim{}, err
	}
	if !strings.HasPrefix(b.MediaType, bundlePrefix) {
		return Claim{}, fmt.Errorf("%w: %.80q is no Sigstore bundle", ErrMalformed, b.MediaType)
	}
	claim, err := b.verify(k, artifact)
	if err != nil && (b.Material.Certificate != nil || b.Material.Chain != nil) {
		return Claim{}, ErrKeyless
	}
	return claim, err
}

func (b *sigstoreBundle) verify(k *PublicKey, artifact []byte) (Claim, error) {
	switch {
	case b.Envelope != nil && b.Message != nil:
		return Claim{}, fmt.Errorf("%w: it has an envelope and a message signature", ErrMalformed)
	case b.Envelope != nil:
		return b.Envelope.verify(k, artifact)
	case b.Message == nil:
		return Claim{}, fmt.Errorf("%w: it has no signature", ErrMalformed)
	}
	sum := sha256.Sum256(artifact)
	if d := b.Message.Digest; d.Algorithm == "SHA2_256" && !slices.Equal(d.Digest, sum[:]) {
		return Claim{}, fmt.Errorf("%w: sha256:%.64x", ErrOtherDigest, d.Digest)
	}
	return Claim{}, k.Verify(artifact, b.Message.Signature)
}

func (e *dsse) verify(k *PublicKey, artifact []byte) (Claim, error) {
	// One signature, as the bundle's specification has it: with several, what one key said would stand beside another's.
	if len(e.Signatures) != 1 {
		return Claim{}, fmt.Errorf("%w: its envelope has %d signatures, not one", ErrMalformed, len(e.Signatures))
	}
	if err := k.Verify(preAuthEncoding(e.PayloadType, e.Payload), e.Signatures[0].Sig); err != nil {
		return Claim{}, err
	}
	if e.PayloadType != inToto {
		return Claim{}, fmt.Errorf("%w: its envelope holds %.80q, not %s", ErrMalformed, e.PayloadType, inToto)
	}
	var s statement
	if err := unmarshal(e.Payload, &s); err != nil {
		return Claim{}, err
	}
	if s.Type != "https://in-toto.io/Statement/v1" && s.Type != "https://in-toto.io/Statement/v0.1" {
		return Claim{}, fmt.Errorf("%w: its statement is of type %.80q", ErrMalformed, s.Type)
	}
	if s.PredicateType == "" || len(s.Subject) > maxSubjects {
		return Claim{}, fmt.Errorf("%w: its statement has no predicate type, or more than %d subjects", ErrMalformed, maxSubjects)
	}
	want := digest.FromBytes(artifact).Encoded()
	for _, subject := range s.Subject {
		if subject.Digest["sha256"] == want {
			return Claim{Predicate: s.PredicateType, Content: s.Predicate}, nil
		}
	}
	if len(s.Subject) == 0 {
		return Claim{}, fmt.Errorf("%w: its statement is about nothing", ErrOtherDigest)
	}
	return Claim{}, fmt.Errorf("%w: %.80q", ErrOtherDigest, "sha256:"+s.Subject[0].Digest["sha256"])
}

// preAuthEncoding is what a DSSE signature is made over (DSSE protocol.md, PAE).
func preAuthEncoding(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}
