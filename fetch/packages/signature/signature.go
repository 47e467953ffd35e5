// Package signature checks OpenPGP signatures of repository metadata against given keys.
package signature

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// MaxKeyring bounds a file of keys, in bytes.
const MaxKeyring = 8 << 20

// ErrExpired means that a signature, or the only key with a valid one, has expired.
var ErrExpired = errors.New("the signing key has expired")

// maxSignatures bounds the signatures of one file: Debian has three.
const maxSignatures = 32

// Keys are trusted keys. The zero value trusts none.
type Keys struct {
	list openpgp.EntityList
	// AllowExpired accepts signatures whose key has expired since, as for snapshots.
	AllowExpired bool
}

// ReadKeys reads a file of public keys, binary or armored, with any number of blocks.
func ReadKeys(data []byte) (*Keys, error) {
	if len(data) > MaxKeyring {
		return nil, fmt.Errorf("a keyring may have at most %d MiB", MaxKeyring>>20)
	}
	if err := otherForm(data); err != nil {
		return nil, err
	}
	k := &Keys{}
	const head = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	if !bytes.Contains(data, []byte(head)) {
		list, err := openpgp.ReadKeyRing(bytes.NewReader(data))
		if err != nil || len(list) == 0 {
			return nil, noKeys(err)
		}
		k.list = list
		return k, nil
	}
	for rest := string(data); ; {
		at := strings.Index(rest, head)
		if at < 0 {
			break
		}
		list, err := openpgp.ReadArmoredKeyRing(strings.NewReader(rest[at:]))
		if err != nil {
			return nil, noKeys(err)
		}
		k.list, rest = append(k.list, list...), rest[at+len(head):]
	}
	return k, nil
}

// otherForm names files that people take for a file of public keys.
func otherForm(data []byte) error {
	const keyboxMagic = 8 // its offset: https://git.gnupg.org, kbx/keybox-blob.c
	switch {
	case len(data) >= keyboxMagic && bytes.HasPrefix(data[keyboxMagic:], []byte("KBXf")):
		return errors.New("it is a keybox of GnuPG (pubring.kbx), with every key that its user ever fetched: " +
			"write the publisher's key into a file with gpg --export KEY > key.gpg, and name that file")
	case bytes.Contains(data, []byte("-----BEGIN PGP PRIVATE KEY BLOCK-----")):
		return errors.New("it has a private key, which does not belong here: write the public one into a file with gpg --export KEY > key.gpg")
	}
	return nil
}

func noKeys(err error) error {
	if err == nil {
		return errors.New("there are no OpenPGP public keys in the file")
	}
	return fmt.Errorf("not a file of OpenPGP public keys: %w", err)
}

// clearSigned reads a clear-signed file.
func clearSigned(data []byte) (*clearsign.Block, error) {
	block, rest := clearsign.Decode(data)
	if block == nil {
		return nil, errors.New("not signed")
	}
	if len(bytes.TrimSpace(rest)) > 0 ||
		!bytes.HasPrefix(bytes.TrimSpace(data), []byte("-----BEGIN PGP SIGNED MESSAGE-----")) {
		return nil, errors.New("text outside of the signed part")
	}
	return block, nil
}

// Unverified returns the text of a clear-signed file without checking its signatures.
func Unverified(data []byte) ([]byte, error) {
	block, err := clearSigned(data)
	if err != nil {
		return nil, err
	}
	return block.Plaintext, nil
}

// Clear returns the text of a clear-signed file with a signature by one of the keys; other signatures are allowed.
func (k *Keys) Clear(data []byte, now time.Time) ([]byte, error) {
	block, err := clearSigned(data)
	if err != nil {
		return nil, err
	}
	if err := k.check(block.Bytes, block.ArmoredSignature.Body, now); err != nil {
		return nil, err
	}
	return block.Plaintext, nil
}

// Detached checks a detached signature, armored or binary.
func (k *Keys) Detached(data, sig []byte, now time.Time) error {
	var body io.Reader = bytes.NewReader(sig)
	if bytes.HasPrefix(bytes.TrimSpace(sig), []byte("-----BEGIN")) {
		block, err := armor.Decode(bytes.NewReader(sig))
		if err != nil {
			return fmt.Errorf("unreadable signature: %w", err)
		}
		body = block.Body
	}
	return k.check(data, body, now)
}

// check requires one valid signature of a known key and ignores others.
func (k *Keys) check(data []byte, body io.Reader, now time.Time) error {
	var (
		known []error
		ids   []string
	)
	packets := packet.NewOpaqueReader(body)
	for range maxSignatures {
		p, err := packets.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("unreadable signature: %w", err)
		}
		issuer, valid, ok := k.parse(p, data)
		if !ok {
			continue
		}
		err = k.inTime(valid, now)
		if err == nil {
			return nil
		}
		if errors.Is(err, pgperrors.ErrUnknownIssuer) {
			ids = append(ids, fmt.Sprintf("%016X", issuer))
			continue
		}
		known = append(known, fmt.Errorf("signature of key %016X: %w", issuer, err))
	}
	switch {
	case len(known) > 0:
		return errors.Join(known...)
	case len(ids) > 0:
		return fmt.Errorf("no given key signed it: there are signatures of %s", strings.Join(ids, ", "))
	}
	return errors.New("there is no signature")
}

// A validation checks a signature as of a time; the zero time means that of its creation.
type validation func(at time.Time) error

// parse returns the issuer of a signature and its validation; false for another packet.
func (k *Keys) parse(p *packet.OpaquePacket, data []byte) (issuer uint64, valid validation, ok bool) {
	const tagSignature = 2
	if p.Tag != tagSignature || len(p.Contents) == 0 {
		return 0, nil, false
	}
	if p.Contents[0] == 3 {
		v, err := parseVersion3(p.Contents)
		return v.issuer, func(at time.Time) error {
			if err != nil {
				return err
			}
			if at.IsZero() {
				at = v.created()
			}
			return v.check(k.list, data, at)
		}, true
	}
	parsed, err := p.Parse()
	sig, isSignature := parsed.(*packet.Signature)
	if err != nil || !isSignature || sig.IssuerKeyId == nil {
		return 0, nil, false
	}
	return *sig.IssuerKeyId, func(at time.Time) error {
		if at.IsZero() {
			at = sig.CreationTime
		}
		return k.later(data, p, at)
	}, true
}

// later checks a signature of a version after 3.
func (k *Keys) later(data []byte, p *packet.OpaquePacket, at time.Time) error {
	var alone bytes.Buffer
	if err := p.Serialize(&alone); err != nil {
		return err
	}
	config := &packet.Config{Time: func() time.Time { return at }}
	_, err := openpgp.CheckDetachedSignature(k.list, bytes.NewReader(data), &alone, config)
	return err
}

// inTime requires a signature and a key that are valid now, or with AllowExpired when it was signed.
func (k *Keys) inTime(valid validation, now time.Time) error {
	err := valid(now)
	if !errors.Is(err, pgperrors.ErrKeyExpired) && !errors.Is(err, pgperrors.ErrSignatureExpired) {
		return err
	}
	if !k.AllowExpired {
		return fmt.Errorf("%w: %w", ErrExpired, err)
	}
	return valid(time.Time{})
}
