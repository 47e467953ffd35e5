package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// PEM types of private keys. Sigstore's type had cosign's name until version 2.
const (
	pemSigstore = "ENCRYPTED SIGSTORE PRIVATE KEY"
	pemCosign   = "ENCRYPTED COSIGN PRIVATE KEY"
	pemPKCS8    = "PRIVATE KEY"
)

// ErrPassword means a private key's password is wrong.
var ErrPassword = errors.New("the password does not open the key, or its file is damaged")

// A PrivateKey signs. It is immutable and safe for concurrent use.
type PrivateKey struct {
	signer    crypto.Signer
	public    *PublicKey
	encrypted bool
}

// ParsePrivateKey reads a PEM file with one private key: cosign's, which is encrypted, or unencrypted PKCS #8, as
// written by `openssl genpkey`. The key types are those of ParsePublicKey. password is only called for an encrypted
// key; for a wrong password the error matches ErrPassword.
func ParsePrivateKey(data []byte, password func() ([]byte, error)) (*PrivateKey, error) {
	if len(data) > MaxKey {
		return nil, fmt.Errorf("%d bytes are too many for a private key; at most %d are read", len(data), MaxKey)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("not a private key: want a PEM file such as cosign.key")
	}
	der, encrypted := block.Bytes, false
	switch block.Type {
	case pemPKCS8:
	case pemSigstore, pemCosign:
		encrypted = true
		var box keyBox
		err := box.parse(block.Bytes)
		if err != nil {
			return nil, err
		}
		secret, err := password()
		if err != nil {
			return nil, err
		}
		if der, err = box.open(secret); err != nil {
			return nil, err
		}
	case "PUBLIC KEY":
		return nil, errors.New("a public key cannot sign: name the private key (cosign.key beside cosign.pub)")
	default:
		return nil, fmt.Errorf("a PEM file of %.40q: want %s; `cosign import-key-pair` converts other keys, `openssl pkcs8 -topk8 -nocrypt` makes one without a password", block.Type, pemSigstore)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	return newPrivateKey(key, encrypted)
}

func newPrivateKey(key any, encrypted bool) (*PrivateKey, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign: use ECDSA, Ed25519 or RSA", key)
	}
	public, err := newPublicKey(signer.Public())
	if err != nil {
		return nil, err
	}
	return &PrivateKey{signer: signer, public: public, encrypted: encrypted}, nil
}

// Public returns the public key, which checks signatures of this one.
func (k *PrivateKey) Public() *PublicKey { return k.public }

// Encrypted reports whether the key's file is encrypted.
func (k *PrivateKey) Encrypted() bool { return k.encrypted }

// A KeyPair is the content of the two files that `cosign generate-key-pair` writes.
type KeyPair struct {
	Private []byte // cosign.key: PEM, encrypted with the password
	Public  []byte // cosign.pub: PEM
}

// GenerateKeyPair makes a key like cosign's: ECDSA on P-256, PKCS #8, encrypted with NaCl's secretbox under a key that
// scrypt derives from the password.
func GenerateKeyPair(password []byte) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return KeyPair{}, err
	}
	var box keyBox
	if err := box.seal(der, password); err != nil {
		return KeyPair{}, err
	}
	private, err := json.Marshal(box)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{
		Private: pem.EncodeToMemory(&pem.Block{Type: pemSigstore, Bytes: private}),
		Public:  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	}, nil
}

// keyBox is cosign's container of an encrypted key (go-securesystemslib, package encrypted), as JSON.
type keyBox struct {
	KDF struct {
		Name   string       `json:"name"`
		Params scryptParams `json:"params"`
		Salt   []byte       `json:"salt"`
	} `json:"kdf"`
	Cipher struct {
		Name  string `json:"name"`
		Nonce []byte `json:"nonce"`
	} `json:"cipher"`
	Ciphertext []byte `json:"ciphertext"`
}

type scryptParams struct {
	N int `json:"N"`
	R int `json:"r"`
	P int `json:"p"`
}

const (
	kdfName    = "scrypt"
	cipherName = "nacl/secretbox"
	saltSize   = 32
	nonceSize  = 24
	boxKeySize = 32
	scryptN    = 1 << 16 // cosign's choice: 64 MiB and a fifth of a second
)

// parse accepts only the parameters that cosign has ever used: others could take any time and memory.
func (b *keyBox) parse(data []byte) error {
	if err := unmarshal(data, b); err != nil {
		return err
	}
	n := b.KDF.Params.N
	switch {
	case b.KDF.Name != kdfName || b.Cipher.Name != cipherName:
		return fmt.Errorf("%w: encrypted with %.40q and %.40q, not %s and %s", ErrMalformed, b.KDF.Name, b.Cipher.Name,
			kdfName, cipherName)
	case n != 1<<15 && n != scryptN && n != 1<<17 || b.KDF.Params.R != 8 || b.KDF.Params.P != 1:
		return fmt.Errorf("%w: the scrypt parameters are not cosign's", ErrMalformed)
	case len(b.Cipher.Nonce) != nonceSize:
		return fmt.Errorf("%w: the nonce has %d bytes, not %d", ErrMalformed, len(b.Cipher.Nonce), nonceSize)
	}
	return nil
}

func (b *keyBox) key(password []byte) (*[boxKeySize]byte, error) {
	p := b.KDF.Params
	key, err := scrypt.Key(password, b.KDF.Salt, p.N, p.R, p.P, boxKeySize)
	if err != nil {
		return nil, err
	}
	return (*[boxKeySize]byte)(key), nil
}

func (b *keyBox) open(password []byte) ([]byte, error) {
	key, err := b.key(password)
	if err != nil {
		return nil, err
	}
	plain, ok := secretbox.Open(nil, b.Ciphertext, (*[nonceSize]byte)(b.Cipher.Nonce), key)
	if !ok {
		return nil, ErrPassword
	}
	return plain, nil
}

func (b *keyBox) seal(plain, password []byte) error {
	random := make([]byte, saltSize+nonceSize)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	b.KDF.Name, b.KDF.Params, b.KDF.Salt = kdfName, scryptParams{scryptN, 8, 1}, random[:saltSize]
	b.Cipher.Name, b.Cipher.Nonce = cipherName, random[saltSize:]
	key, err := b.key(password)
	if err != nil {
		return err
	}
	b.Ciphertext = secretbox.Seal(nil, plain, (*[nonceSize]byte)(b.Cipher.Nonce), key)
	return nil
}
