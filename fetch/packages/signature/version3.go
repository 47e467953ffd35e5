package signature

import (
	"crypto"
	"crypto/rsa"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// A version3 is a signature packet of version 3 (RFC 4880, 5.2.2). The signing servers of several RPM distributions
// still write it, and the OpenPGP library reads only later versions.
type version3 struct {
	trailer [5]byte // type and creation time: signed after the data
	issuer  uint64
	hash    crypto.Hash
	value   []byte // of RSA, without leading zeros
}

const version3Head = 19 // bytes before the first number

// parseVersion3 reads the content of a signature packet. It accepts RSA over a whole file with SHA-2 only.
func parseVersion3(b []byte) (version3, error) {
	var v version3
	const algorithm, hash, number = 15, 16, 19
	hashes := map[byte]crypto.Hash{8: crypto.SHA256, 9: crypto.SHA384, 10: crypto.SHA512, 11: crypto.SHA224}
	if len(b) < version3Head+2 || b[0] != 3 || b[1] != 5 {
		return v, errors.New("signature of version 3 is malformed")
	}
	copy(v.trailer[:], b[2:7])
	v.issuer = binary.BigEndian.Uint64(b[7:15])
	if b[algorithm] != byte(packet.PubKeyAlgoRSA) && b[algorithm] != byte(packet.PubKeyAlgoRSASignOnly) ||
		v.trailer[0] != byte(packet.SigTypeBinary) {
		return v, fmt.Errorf("signature of version 3 has algorithm %d and type %d; only RSA over a file is accepted",
			b[algorithm], v.trailer[0])
	}
	v.hash = hashes[b[hash]]
	if v.hash == 0 {
		return v, fmt.Errorf("signature of version 3 uses hash %d; only SHA-2 is accepted", b[hash])
	}
	bits := int(binary.BigEndian.Uint16(b[number:]))
	v.value = b[number+2:]
	if len(v.value) != (bits+7)/8 {
		return v, errors.New("signature of version 3 is malformed")
	}
	return v, nil
}

func (v version3) created() time.Time {
	return time.Unix(int64(binary.BigEndian.Uint32(v.trailer[1:])), 0)
}

// check requires a signature of data by one of the keys that is valid at a time.
func (v version3) check(list openpgp.EntityList, data []byte, now time.Time) error {
	h := v.hash.New()
	h.Write(data)
	h.Write(v.trailer[:])
	sum := h.Sum(nil)
	err := error(pgperrors.ErrUnknownIssuer)
	for _, key := range list.KeysByIdUsage(v.issuer, packet.KeyFlagSign) {
		public, ok := key.PublicKey.PublicKey.(*rsa.PublicKey)
		if !ok || len(v.value) > public.Size() {
			err = errors.New("signature is not one of this key's kind")
			continue
		}
		value := make([]byte, public.Size())
		copy(value[len(value)-len(v.value):], v.value)
		if err = rsa.VerifyPKCS1v15(public, v.hash, sum, value); err == nil {
			return validKey(key, now)
		}
	}
	return err
}

// validKey refuses a revoked or expired key.
func validKey(key openpgp.Key, now time.Time) error {
	self, _ := key.Entity.PrimarySelfSignature()
	switch {
	case self == nil || key.SelfSignature == nil:
		return errors.New("the key has no signature of its own")
	case key.Entity.Revoked(now) || key.Revoked(now):
		return pgperrors.ErrKeyRevoked
	case key.Entity.PrimaryKey.KeyExpired(self, now) || key.PublicKey.KeyExpired(key.SelfSignature, now):
		return pgperrors.ErrKeyExpired
	}
	return nil
}
