package trusttest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kkbundle/kkbundle/proof/trust"
)

// A Sigstore signs without keys: the library's own authority and log for tests. It stands in for public Sigstore and
// for what cosign writes with it, which were not reached. It has no certificate transparency log.
type Sigstore struct {
	ca *ca.VirtualSigstore
	// Root is its trusted_root.json.
	Root []byte
}

// NewSigstore makes a Sigstore with authorities of its own.
func NewSigstore() (*Sigstore, error) {
	v, err := ca.NewVirtualSigstore()
	if err != nil {
		return nil, err
	}
	logs := v.RekorLogs()
	for id, l := range logs {
		if l.ID, err = hex.DecodeString(id); err != nil {
			return nil, err
		}
	}
	material, err := root.NewTrustedRoot(root.TrustedRootMediaType01, v.FulcioCertificateAuthorities(), nil,
		v.TimestampingAuthorities(), logs)
	if err != nil {
		return nil, err
	}
	data, err := material.MarshalJSON()
	return &Sigstore{v, data}, err
}

// An entity is a signature with its certificate and log entry.
type entity struct {
	certificate, signature []byte
	entry                  *protorekor.TransparencyLogEntry
}

// entity takes the parts of the library's entity and completes the log entry: with its kind, the log's promise, and a
// proof.
func (s *Sigstore) entity(e verify.SignedEntity) (one entity, err error) {
	content, err := e.VerificationContent()
	if err != nil {
		return one, err
	}
	signature, err := e.SignatureContent()
	if err != nil {
		return one, err
	}
	entries, err := e.TlogEntries()
	if err != nil {
		return one, err
	}
	one.certificate, one.signature, one.entry = content.Certificate().Raw, signature.Signature(),
		entries[0].TransparencyLogEntry()
	body := one.entry.GetCanonicalizedBody()
	var kind struct {
		Kind    string `json:"kind"`
		Version string `json:"apiVersion"`
	}
	if err := json.Unmarshal(body, &kind); err != nil {
		return one, err
	}
	one.entry.LogIndex = 0
	promise, err := s.ca.RekorSignPayload(payload(one.entry))
	if err != nil {
		return one, err
	}
	one.entry.KindVersion = &protorekor.KindVersion{Kind: kind.Kind, Version: kind.Version}
	one.entry.InclusionPromise = &protorekor.InclusionPromise{SignedEntryTimestamp: promise}
	p, err := s.ca.GetInclusionProof(body)
	if err != nil {
		return one, err
	}
	sum, err := hex.DecodeString(*p.RootHash)
	one.entry.InclusionProof = &protorekor.InclusionProof{
		LogIndex: *p.LogIndex, RootHash: sum, TreeSize: *p.TreeSize,
		Checkpoint: &protorekor.Checkpoint{Envelope: *p.Checkpoint},
	}
	return one, err
}

func payload(e *protorekor.TransparencyLogEntry) tlog.RekorPayload {
	return tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(e.GetCanonicalizedBody()), IntegratedTime: e.GetIntegratedTime(),
		LogIndex: e.GetLogIndex(),
		LogID:    hex.EncodeToString(e.GetLogId().GetKeyId()),
	}
}

func (e entity) bundle() *protobundle.Bundle {
	return &protobundle.Bundle{
		MediaType: trust.MediaTypeBundle,
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_Certificate{
				Certificate: &protocommon.X509Certificate{RawBytes: e.certificate},
			},
			TlogEntries: []*protorekor.TransparencyLogEntry{e.entry},
		},
	}
}

// Bundle is a signature of an artifact in cosign's new format: a statement with this predicate.
func (s *Sigstore) Bundle(subject, issuer string, artifact []byte, predicate string) ([]byte, error) {
	statement := fmt.Appendf(nil,
		`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"x","digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		digest.FromBytes(artifact).Encoded(), predicate)
	made, err := s.ca.AttestAtTime(subject, issuer, statement, time.Now().Add(time.Minute), true)
	if err != nil {
		return nil, err
	}
	e, err := s.entity(made)
	if err != nil {
		return nil, err
	}
	b := e.bundle()
	b.Content = &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
		Payload: statement, PayloadType: "application/vnd.in-toto+json",
		Signatures: []*protodsse.Signature{{Sig: e.signature}},
	}}
	return protojson.Marshal(b)
}

// MessageBundle is a signature of an artifact's bytes, as of cosign sign-blob.
func (s *Sigstore) MessageBundle(subject, issuer string, artifact []byte) ([]byte, error) {
	made, err := s.ca.Sign(subject, issuer, artifact)
	if err != nil {
		return nil, err
	}
	e, err := s.entity(made)
	if err != nil {
		return nil, err
	}
	sum, err := hex.DecodeString(digest.FromBytes(artifact).Encoded())
	if err != nil {
		return nil, err
	}
	b := e.bundle()
	b.Content = &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
		MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum},
		Signature:     e.signature,
	}}
	return protojson.Marshal(b)
}

// Simple is a signature of an image in cosign's old format: a payload with certificate and log entry as annotations.
func (s *Sigstore) Simple(subject, issuer, image string, d digest.Digest) (trust.SimpleSignature, error) {
	text := fmt.Appendf(nil,
		`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, image, d)
	made, err := s.ca.Sign(subject, issuer, text)
	if err != nil {
		return trust.SimpleSignature{}, err
	}
	e, err := s.entity(made)
	if err != nil {
		return trust.SimpleSignature{}, err
	}
	rekor, err := json.Marshal(map[string]any{"SignedEntryTimestamp": e.entry.GetInclusionPromise().GetSignedEntryTimestamp(), "Payload": payload(e.entry)})
	return trust.SimpleSignature{Payload: text, Annotations: map[string]string{
		trust.AnnotationSignature:    base64.StdEncoding.EncodeToString(e.signature),
		trust.AnnotationCertificate:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.certificate})),
		"dev.sigstore.cosign/bundle": string(rekor),
	}}, err
}
