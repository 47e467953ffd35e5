package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

// MaxKey is the maximal size of a public key file, in bytes.
const MaxKey = 64 << 10

// Bits of RSA keys. Shorter keys are broken or soon will be (NIST SP 800-131A); longer ones only cost time.
const (
	minRSA = 2048
	maxRSA = 16384
)

// A PublicKey checks signatures. It is immutable and safe for concurrent use.
type PublicKey struct {
	key         crypto.PublicKey // *ecdsa.PublicKey, ed25519.PublicKey or *rsa.PublicKey
	fingerprint digest.Digest
}

// ParsePublicKey reads a PEM file with one public key, in the format of cosign and openssl (PKIX, "PUBLIC KEY"): ECDSA
// on P-256, P-384 or P-521, Ed25519, or RSA with 2048 to 16384 bits.
func ParsePublicKey(data []byte) (*PublicKey, error) {
	list, err := ParsePublicKeys(data)
	switch {
	case err != nil:
		return nil, err
	case len(list) > 1:
		return nil, errors.New("the file has more than one PEM block: keep one public key")
	}
	return list[0], nil
}

// ParsePublicKeys reads a PEM file with one or more public keys, as ParsePublicKey does. Text between the blocks is
// ignored. An unreadable block is an error, so that no key of a damaged file is silently ignored.
func ParsePublicKeys(data []byte) ([]*PublicKey, error) {
	if len(data) > MaxKey {
		return nil, fmt.Errorf("%d bytes are too many for a public key; at most %d are read", len(data), MaxKey)
	}
	var list []*PublicKey
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		key, err := parsePublicBlock(block)
		if err != nil {
			return nil, err
		}
		list = append(list, key)
	}
	switch begun := bytes.Count(data, []byte("-----BEGIN ")); {
	case len(list) == 0:
		return nil, errors.New("not a public key: want a PEM file that begins with -----BEGIN PUBLIC KEY-----, such as cosign.pub")
	case len(list) != begun:
		return nil, fmt.Errorf("only %[2]d of %[1]d PEM blocks can be read", begun, len(list))
	}
	return list, nil
}

func parsePublicBlock(block *pem.Block) (*PublicKey, error) {
	switch {
	case strings.Contains(block.Type, "PRIVATE KEY"):
		return nil, errors.New("a private key in place of a public one: name the public key (cosign.pub beside cosign.key)")
	case block.Type == "CERTIFICATE":
		return nil, errors.New("a certificate in place of a public key: write its public key into a file (openssl x509 -pubkey -noout) and name that file")
	case block.Type != "PUBLIC KEY":
		return nil, fmt.Errorf("a PEM file of %.40q: want PUBLIC KEY", block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	return newPublicKey(key)
}

func newPublicKey(key crypto.PublicKey) (*PublicKey, error) {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() && k.Curve != elliptic.P521() {
			return nil, fmt.Errorf("ECDSA on %s is not supported: use P-256, P-384 or P-521", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return nil, fmt.Errorf("an RSA key of %d bits is not supported: use %d to %d", bits, minRSA, maxRSA)
		}
	default:
		return nil, fmt.Errorf("a key of type %T is not supported: use ECDSA, Ed25519 or RSA", key)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return &PublicKey{key: key, fingerprint: digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum[:]))},
		nil
}

// Fingerprint returns the sha256 of the key's DER form (SubjectPublicKeyInfo), which is independent of the file's
// formatting. `openssl pkey -pubin -in KEY -outform DER | sha256sum` prints it.
func (k *PublicKey) Fingerprint() digest.Digest { return k.fingerprint }

// Verify checks a signature of a message in the forms of Sigstore's programs: ECDSA (ASN.1) and RSA (PKCS #1 v1.5) over
// SHA-256, or over the hash that matches the curve; Ed25519 over the message, or over its SHA-512 (Ed25519ph). The
// error is ErrWrongKey.
func (k *PublicKey) Verify(message, signature []byte) error {
	ok := false
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		for _, h := range hashesOf(key.Curve) {
			ok = ok || ecdsa.VerifyASN1(key, hashed(h, message), signature)
		}
	case ed25519.PublicKey:
		ok = ed25519.Verify(key, message, signature) ||
			ed25519.VerifyWithOptions(key, hashed(crypto.SHA512, message), signature,
				&ed25519.Options{Hash: crypto.SHA512}) == nil
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(key, crypto.SHA256, hashed(crypto.SHA256, message), signature) == nil
	}
	if !ok {
		return ErrWrongKey
	}
	return nil
}

// hashesOf lists the hashes used for ECDSA signatures on a curve: cosign always uses SHA-256, newer programs the hash
// of the curve's size.
func hashesOf(curve elliptic.Curve) []crypto.Hash {
	switch curve {
	case elliptic.P384():
		return []crypto.Hash{crypto.SHA256, crypto.SHA384}
	case elliptic.P521():
		return []crypto.Hash{crypto.SHA256, crypto.SHA512}
	}
	return []crypto.Hash{crypto.SHA256}
}

func hashed(h crypto.Hash, message []byte) []byte {
	switch h {
	case crypto.SHA384:
		sum := sha512.Sum384(message)
		return sum[:]
	case crypto.SHA512:
		sum := sha512.Sum512(message)
		return sum[:]
	}
	sum := sha256.Sum256(message)
	return sum[:]
}
