// Package trusttest signs like cosign, so that tests have signatures of new artifacts. Signatures made by cosign itself
// are in the testdata of package trust.
package trusttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/proof/trust"
)

// A Signer holds a private key.
type Signer struct {
	key crypto.Signer
	// PEM is the public key, in the format of cosign.pub.
	PEM []byte
}

// New makes a key: "p256", "p384", "p521", "ed25519" or "rsa".
func New(kind string) (*Signer, error) {
	var (
		key crypto.Signer
		err error
	)
	switch kind {
	case "p256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "p384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "p521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		err = fmt.Errorf("unknown kind of key %s", kind)
	}
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return &Signer{key: key, PEM: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}, nil
}

// PrivatePEM returns the private key without encryption (PKCS #8), like openssl genpkey.
func (s *Signer) PrivatePEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Sign signs a message: its SHA-256, or with Ed25519 the message itself.
func (s *Signer) Sign(message []byte) ([]byte, error) {
	if _, ok := s.key.(ed25519.PrivateKey); ok {
		return s.key.Sign(nil, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return s.key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// Simple makes a simple signature of a digest under a name.
func (s *Signer) Simple(image string, d digest.Digest) (trust.SimpleSignature, error) {
	payload := fmt.Appendf(nil,
		`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, image, d)
	return s.Payload(payload)
}

// Payload makes a simple signature of any bytes.
func (s *Signer) Payload(payload []byte) (trust.SimpleSignature, error) {
	sig, err := s.Sign(payload)
	return trust.SimpleSignature{
		Payload:     payload,
		Annotations: map[string]string{trust.AnnotationSignature: base64.StdEncoding.EncodeToString(sig)},
	}, err
}

// Bundle makes a Sigstore bundle with a statement of that predicate type about a digest.
func (s *Signer) Bundle(d digest.Digest, predicate string) ([]byte, error) {
	statement := fmt.Appendf(nil,
		`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, d.Encoded(), predicate)
	const kind = "application/vnd.in-toto+json"
	sig, err := s.Sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement))
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"mediaType":            trust.MediaTypeBundle,
		"verificationMaterial": map[string]any{"publicKey": map[string]string{"hint": "test"}},
		"dsseEnvelope": map[string]any{
			"payload": statement, "payloadType": kind,
			"signatures": []any{map[string]any{"sig": sig}},
		},
	})
}

// MessageBundle makes a Sigstore bundle with a signature of the bytes themselves.
func (s *Signer) MessageBundle(artifact []byte) ([]byte, error) {
	sig, err := s.Sign(artifact)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(artifact)
	return json.Marshal(map[string]any{
		"mediaType":            trust.MediaTypeBundle,
		"verificationMaterial": map[string]any{"publicKey": map[string]string{"hint": "test"}},
		"messageSignature": map[string]any{"messageDigest": map[string]any{
			"algorithm": "SHA2_256",
			"digest":    sum[:],
		}, "signature": sig},
	})
}

// PushSimple pushes simple signatures of a digest under its tag, as cosign does.
func PushSimple(repo name.Repository, of digest.Digest, list []trust.SimpleSignature, o ...remote.Option) error {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, s := range list {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:       static.NewLayer(s.Payload, trust.MediaTypeSimpleSigning),
			Annotations: s.Annotations,
		})
		if err != nil {
			return err
		}
	}
	return remote.Write(repo.Tag("sha256-"+of.Encoded()+".sig"), img, o...)
}

// Attach pushes an artifact with one layer and the given subject, and returns the digest of the artifact's manifest. If
// the registry has no referrers API, Attach adds the artifact to the index under the fallback tag.
func Attach(repo name.Repository, subject v1.Descriptor, artifactType string, layer []byte,
	o ...remote.Option,
) (digest.Digest, error) {
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		mutate.Addendum{Layer: static.NewLayer(layer, types.MediaType(artifactType))})
	if err != nil {
		return "", err
	}
	img = mutate.ConfigMediaType(img, types.MediaType(artifactType))
	attached := mutate.Subject(img, subject).(v1.Image)
	h, err := attached.Digest()
	if err != nil {
		return "", err
	}
	return digest.Digest(h.String()), remote.Write(repo.Digest(h.String()), attached, o...)
}
