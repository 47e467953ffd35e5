package format

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

// A Sum is a sha256 digest in 32 bytes: half the memory of its text, and comparable.
type Sum [32]byte

// Digest returns the digest as text.
func (s Sum) Digest() digest.Digest { return digest.Digest("sha256:" + hex.EncodeToString(s[:])) }

// Hex returns the 64 hexadecimal digits.
func (s Sum) Hex() string { return hex.EncodeToString(s[:]) }

// CompareSums compares a and b bytewise, as slices.SortFunc needs it.
func CompareSums(a, b Sum) int { return bytes.Compare(a[:], b[:]) }

// ParseDigest accepts only sha256 in lower case, like the format.
func ParseDigest(d digest.Digest) (Sum, error) {
	algorithm, text, ok := strings.Cut(string(d), ":")
	if !ok || text == "" {
		return Sum{}, fmt.Errorf("%q is not a digest", d)
	}
	if algorithm != "sha256" {
		return Sum{}, fmt.Errorf("digest %s: only sha256 digests are supported", d)
	}
	return ParseHex(text)
}

// ParseHex reads 64 lower-case hexadecimal digits.
func ParseHex(text string) (s Sum, err error) {
	if len(text) != hex.EncodedLen(len(s)) || strings.ToLower(text) != text {
		return Sum{}, fmt.Errorf("%q is not a sha256 digest: want 64 lower-case hexadecimal digits", text)
	}
	if _, err := hex.Decode(s[:], []byte(text)); err != nil {
		return Sum{}, fmt.Errorf("%q is not a sha256 digest: want 64 lower-case hexadecimal digits", text)
	}
	return s, nil
}
