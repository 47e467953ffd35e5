package trust

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
)

// VerifyBlob checks a Sigstore bundle with a signature of the artifact's bytes, as written by SignBlob and `cosign
// sign-blob`, and returns the key among keys that made it. A statement about the artifact is not such a signature.
//
// The error matches ErrWrongKey, ErrKeyless, ErrOtherDigest or ErrMalformed.
func VerifyBlob(keys []*PublicKey, bundle, artifact []byte) (*PublicKey, error) {
	b, err := parseBundle(bundle)
	switch {
	case err != nil:
		return nil, err
	case b.Envelope != nil:
		return nil, fmt.Errorf("%w: a statement in a DSSE envelope (an attestation), not a signature of the bytes: use sign-blob", ErrMalformed)
	case b.Message == nil:
		return nil, fmt.Errorf("%w: there is no signature", ErrMalformed)
	}
	if err := b.Message.about(artifact); err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.Verify(artifact, b.Message.Signature) == nil {
			return k, nil
		}
	}
	if b.keyless() {
		return nil, ErrKeyless
	}
	return nil, ErrWrongKey
}

// SignerOf returns the fingerprint of the key that a Sigstore bundle names, or "" if it names none. It is unverified:
// for messages only.
func SignerOf(bundle []byte) digest.Digest {
	b, err := parseBundle(bundle)
	if err != nil {
		return ""
	}
	sum, err := base64.StdEncoding.DecodeString(b.Material.PublicKey.Hint)
	if err != nil || len(sum) != digest.SHA256.Size() {
		return ""
	}
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum))
}

// signedBlob is a Sigstore bundle with a message signature, its keys in cosign's order.
type signedBlob struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Message messageSignature `json:"messageSignature"`
}

// SignBlob signs an artifact's bytes and returns a Sigstore bundle: ECDSA or RSA (PKCS #1 v1.5) over SHA-256 for every
// key size, Ed25519 over the message. `cosign verify-blob --key` accepts it. For P-384, P-521 and Ed25519, cosign 3.1
// rejects the output of its own sign-blob.
func (k *PrivateKey) SignBlob(artifact []byte) ([]byte, error) {
	var out signedBlob
	out.MediaType = MediaTypeBundle
	var err error
	if out.Material.PublicKey.Hint, err = k.hint(); err != nil {
		return nil, err
	}
	out.Message.Digest = messageDigest{sigstoreName(crypto.SHA256), hashed(crypto.SHA256, artifact)}
	if out.Message.Signature, err = k.sign(artifact); err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// hint returns the key's name in Sigstore bundles, for messages.
func (k *PrivateKey) hint() (string, error) {
	fingerprint, err := hex.DecodeString(k.public.fingerprint.Encoded())
	return base64.StdEncoding.EncodeToString(fingerprint), err
}

// sign signs a message: its SHA-256, or with Ed25519 the message itself.
func (k *PrivateKey) sign(message []byte) (signature []byte, err error) {
	if _, pure := k.public.key.(ed25519.PublicKey); pure {
		signature, err = k.signer.Sign(rand.Reader, message, crypto.Hash(0))
	} else {
		signature, err = k.signer.Sign(rand.Reader, hashed(crypto.SHA256, message), crypto.SHA256)
	}
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	if k.public.Verify(message, signature) != nil {
		return nil, errors.New("sign: the new signature does not verify: is the key damaged?")
	}
	return signature, nil
}
