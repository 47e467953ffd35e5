package fetch

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/keyless"
)

// A signer checks whether it made a signature, in both of cosign's formats.
type signer interface {
	bundle(data, artifact []byte) (trust.Claim, error)
	simple(s trust.SimpleSignature, manifest digest.Digest) error
}

// mustBeSigned reports whether an image has a demanded signer.
func mustBeSigned(p manifest.Pin) bool { return p.Key != "" || p.Identity != "" }

// signer reads the key or the trusted root that a pin names, and enters its digest into the pin.
func (i *images) signer(pin *manifest.Pin) (signer, error) {
	if pin.Identity == "" {
		key, err := i.publicKey(pin.Key)
		if err != nil {
			return nil, err
		}
		pin.KeyDigest = key.Fingerprint()
		return keySigner{key}, nil
	}
	data, err := capped.ReadFile(i.dir.Path(pin.Root), keyless.MaxRoot)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	root, err := keyless.ParseRoot(data)
	if err != nil {
		return nil, fmt.Errorf("verify: %s: %w", pin.Root, err)
	}
	pin.RootDigest = root.Digest()
	return identitySigner{root, keyless.Identity{Subject: pin.Identity, Issuer: pin.Issuer}}, nil
}

type keySigner struct{ key *trust.PublicKey }

func (k keySigner) bundle(data, artifact []byte) (trust.Claim, error) {
	return trust.VerifyBundle(k.key, data, artifact)
}

func (k keySigner) simple(s trust.SimpleSignature, manifest digest.Digest) error {
	_, err := trust.VerifySimpleSigning(k.key, s, manifest)
	return err
}

type identitySigner struct {
	root *keyless.Root
	id   keyless.Identity
}

func (i identitySigner) bundle(data, artifact []byte) (trust.Claim, error) {
	return i.root.VerifyBundle(i.id, data, artifact)
}

func (i identitySigner) simple(s trust.SimpleSignature, manifest digest.Digest) error {
	return i.root.VerifySimple(i.id, s, manifest)
}
