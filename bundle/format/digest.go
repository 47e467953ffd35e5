package bundle

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

// sum is a sha256 digest in 32 bytes: half the memory of its text, and comparable.
type sum [32]byte

func (s sum) digest() digest.Digest { return digest.Digest("sha256:" + hex.EncodeToString(s[:])) }

func (s sum) hex() string { return hex.EncodeToString(s[:]) }

func compareSums(a, b sum) int { return bytes.Compare(a[:], b[:]) }

// parseDigest accepts only sha256 in lower case, like the format.
func parseDigest(d digest.Digest) (sum, error) {
	algorithm, text, ok := strings.Cut(string(d), ":")
	if !ok || text == "" {
		return sum{}, fmt.Errorf("%q is not a digest", d)
	}
	if algorithm != "sha256" {
		return sum{}, fmt.Errorf("digest %s: only sha256 digests are supported", d)
	}
	return parseHex(text)
}

func parseHex(text string) (s sum, err error) {
	if len(text) != hex.EncodedLen(len(s)) || strings.ToLower(text) != text {
		return sum{}, fmt.Errorf("%q is not a sha256 digest: want 64 lower-case hexadecimal digits", text)
	}
	if _, err := hex.Decode(s[:], []byte(text)); err != nil {
		return sum{}, fmt.Errorf("%q is not a sha256 digest: want 64 lower-case hexadecimal digits", text)
	}
	return s, nil
}
