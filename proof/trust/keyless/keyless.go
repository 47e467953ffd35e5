// Package keyless checks signatures that were made with a certificate of Fulcio in place of a key, without a network.
// A trusted root (Sigstore's trusted_root.json) names the authorities and logs; an identity and its issuer name the
// signer.
//
// A trusted root decides alone who can sign. It counts only if the operator gave it or a lock that the operator gave
// has its digest: one that comes with the signed thing would vouch for itself.
package keyless

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/kkbundle/kkbundle/proof/trust"
)

// MaxRoot is the maximal size of a trusted root, in bytes. Sigstore's has 7 KiB.
const MaxRoot = 1 << 20

// Annotations of cosign's simple signatures without a key, beside those in package trust.
const (
	annotationChain = "dev.sigstore.cosign/chain"
	annotationRekor = "dev.sigstore.cosign/bundle"
)

// ErrRefused means the certificate, the log entry or the signer is not what the root and the identity demand.
var ErrRefused = errors.New("not signed by this identity")

// An Identity is a signer as a certificate names it, both exactly.
type Identity struct {
	Subject string // an email address, or the URI of a workflow
	Issuer  string // of the token that Fulcio accepted, such as https://token.actions.githubusercontent.com
}

// A Root is a trusted root. It is immutable and safe for concurrent use.
type Root struct {
	material *root.TrustedRoot
	digest   digest.Digest
}

// ParseRoot reads a trusted_root.json.
func ParseRoot(data []byte) (*Root, error) {
	if len(data) > MaxRoot {
		return nil, fmt.Errorf("trusted root: %d bytes; at most %d are read", len(data), MaxRoot)
	}
	material, err := root.NewTrustedRootFromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("trusted root: %w", err)
	}
	if len(material.FulcioCertificateAuthorities()) == 0 {
		return nil, errors.New("trusted root: there is no certificate authority in it")
	}
	if len(material.RekorLogs()) == 0 && len(material.TimestampingAuthorities()) == 0 {
		return nil, errors.New("trusted root: there is neither a transparency log nor a timestamp authority in it, and certificates live for minutes")
	}
	return &Root{material, digest.FromBytes(data)}, nil
}

// Digest returns the sha256 of the file, by which a lock pins it.
func (r *Root) Digest() digest.Digest { return r.digest }

// VerifyBundle checks a Sigstore bundle like trust.VerifyBundle, for a signer without a key. The error matches
// ErrRefused or trust.ErrMalformed.
func (r *Root) VerifyBundle(id Identity, data, artifact []byte) (trust.Claim, error) {
	if len(data) > trust.MaxSignature {
		return trust.Claim{}, fmt.Errorf("%w: the bundle has %d bytes", trust.ErrMalformed, len(data))
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(data); err != nil {
		return trust.Claim{}, fmt.Errorf("%w: %w", trust.ErrMalformed, err)
	}
	result, err := r.verify(id, &b, artifact)
	if err != nil {
		return trust.Claim{}, err
	}
	if result.Statement == nil {
		return trust.Claim{}, nil
	}
	claim := trust.Claim{Predicate: result.Statement.GetPredicateType()}
	if claim.Predicate == "" { // Claim takes none for a signature of the bytes
		return trust.Claim{}, fmt.Errorf("%w: the statement has no predicate type", trust.ErrMalformed)
	}
	return claim, nil
}

// VerifySimple checks cosign's simple signature with a certificate, whose chain and log entry are in the layer's
// annotations.
func (r *Root) VerifySimple(id Identity, s trust.SimpleSignature, manifest digest.Digest) error {
	b, err := simpleBundle(s)
	if err != nil {
		return fmt.Errorf("%w: %w", trust.ErrMalformed, err)
	}
	if _, err := r.verify(id, b, s.Payload); err != nil {
		return err
	}
	_, err = trust.SimplePayload(s.Payload, manifest)
	return err
}

// verify requires everything that the root has an authority for: an entry in a transparency log, a time by a log or a
// timestamp authority, and a certificate transparency log's word in the certificate.
func (r *Root) verify(id Identity, entity verify.SignedEntity, artifact []byte) (*verify.VerificationResult, error) {
	if id.Subject == "" || id.Issuer == "" { // the library takes an empty matcher for any
		return nil, errors.New("an identity needs a subject and an issuer")
	}
	options := []verify.VerifierOption{verify.WithObserverTimestamps(1), verify.WithoutStatementPredicate()}
	if len(r.material.RekorLogs()) > 0 {
		options = append(options, verify.WithTransparencyLog(1))
	}
	if len(r.material.CTLogs()) > 0 {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	v, err := verify.NewVerifier(r.material, options...)
	if err != nil {
		return nil, err
	}
	who, err := verify.NewShortCertificateIdentity(id.Issuer, "", id.Subject, "")
	if err != nil {
		return nil, err
	}
	result, err := v.Verify(entity, verify.NewPolicy(verify.WithArtifact(bytes.NewReader(artifact)),
		verify.WithCertificateIdentity(who)))
	if err != nil {
		return nil, fmt.Errorf("%w (%s, %s): %w", ErrRefused, id.Subject, id.Issuer, err)
	}
	return result, nil
}

// rekorBundle is cosign's annotation with the log's promise to include the signature.
type rekorBundle struct {
	SignedEntryTimestamp []byte
	Payload              struct {
		Body           string `json:"body"`
		IntegratedTime int64  `json:"integratedTime"`
		LogIndex       int64  `json:"logIndex"`
		LogID          string `json:"logID"`
	}
}

// simpleBundle makes a Sigstore bundle of version 0.1, which may have a promise in place of a proof, from annotations.
func simpleBundle(s trust.SimpleSignature) (*bundle.Bundle, error) {
	signature, err := base64.StdEncoding.DecodeString(s.Annotations[trust.AnnotationSignature])
	if err != nil || len(signature) == 0 {
		return nil, fmt.Errorf("the annotation %s is missing or is not base64", trust.AnnotationSignature)
	}
	chain, err := certificates(s.Annotations[trust.AnnotationCertificate] + "\n" + s.Annotations[annotationChain])
	if err != nil {
		return nil, err
	}
	entry, err := logEntry(s.Annotations[annotationRekor])
	if err != nil {
		return nil, err
	}
	sum := digest.FromBytes(s.Payload)
	hash, err := hex.DecodeString(sum.Encoded())
	if err != nil {
		return nil, err
	}
	return bundle.NewBundle(&protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle+json;version=0.1",
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_X509CertificateChain{
				X509CertificateChain: &protocommon.X509CertificateChain{Certificates: chain},
			},
			TlogEntries: []*protorekor.TransparencyLogEntry{entry},
		},
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: hash},
			Signature:     signature,
		}},
	})
}

func certificates(text string) ([]*protocommon.X509Certificate, error) {
	var list []*protocommon.X509Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		list = append(list, &protocommon.X509Certificate{RawBytes: block.Bytes})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the annotation %s has no certificate", trust.AnnotationCertificate)
	}
	return list, nil
}

func logEntry(text string) (*protorekor.TransparencyLogEntry, error) {
	var b rekorBundle
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return nil, fmt.Errorf("the annotation %s: %w", annotationRekor, err)
	}
	body, err := base64.StdEncoding.DecodeString(b.Payload.Body)
	if err != nil {
		return nil, fmt.Errorf("the annotation %s: body: %w", annotationRekor, err)
	}
	id, err := hex.DecodeString(b.Payload.LogID)
	if err != nil {
		return nil, fmt.Errorf("the annotation %s: logID: %w", annotationRekor, err)
	}
	var kind struct {
		Kind    string `json:"kind"`
		Version string `json:"apiVersion"`
	}
	if err := json.Unmarshal(body, &kind); err != nil {
		return nil, fmt.Errorf("the annotation %s: body: %w", annotationRekor, err)
	}
	return &protorekor.TransparencyLogEntry{
		LogIndex: b.Payload.LogIndex, LogId: &protocommon.LogId{KeyId: id}, IntegratedTime: b.Payload.IntegratedTime,
		KindVersion:       &protorekor.KindVersion{Kind: kind.Kind, Version: kind.Version},
		InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: b.SignedEntryTimestamp},
		CanonicalizedBody: body,
	}, nil
}
