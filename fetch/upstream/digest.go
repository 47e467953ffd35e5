package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/opencontainers/go-digest"
)

// SHA256Of returns the digest of data.
func SHA256Of(data []byte) digest.Digest {
	sum := sha256.Sum256(data)
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum[:]))
}

// CheckDigest accepts only sha256, which every registry and every runtime supports.
func CheckDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", Printable(d.String()), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %s: only sha256 is supported", d)
	}
	return nil
}
