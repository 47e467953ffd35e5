package packages

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
)

// A Sum is the sum of a file that a repository publishes: the SHA256, by which locks pin files, or a SHA512 where there
// is no other.
type Sum struct {
	hex string // lower case; its length tells which one it is
}

// ErrSum means that a file has another sum.
var ErrSum = errors.New("wrong sum")

// ParseSum returns the sum in hexadecimal digits; ok is false if it is none of the two.
func ParseSum(text string) (s Sum, ok bool) {
	text = strings.ToLower(strings.TrimSpace(text))
	_, err := hex.DecodeString(text)
	if err != nil || len(text) != hex.EncodedLen(sha256.Size) && len(text) != hex.EncodedLen(sha512.Size) {
		return Sum{}, false
	}
	return Sum{text}, true
}

// SHA256 returns the digits of a SHA256; ok is false for a SHA512.
func (s Sum) SHA256() (digits string, ok bool) {
	return s.hex, len(s.hex) == hex.EncodedLen(sha256.Size)
}

// Kind returns the name of its field in a Release: SHA256 or SHA512.
func (s Sum) Kind() string {
	if _, ok := s.SHA256(); ok {
		return "SHA256"
	}
	return "SHA512"
}

// String returns the digits.
func (s Sum) String() string { return s.hex }

// Check reads a file to its end and returns an ErrSum if it has another sum.
func (s Sum) Check(r io.Reader) error {
	var h hash.Hash
	if h = sha256.New(); s.Kind() == "SHA512" {
		h = sha512.New()
	}
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != s.hex {
		return fmt.Errorf("%w: %s is %s instead of %s", ErrSum, strings.ToLower(s.Kind()), got, s)
	}
	return nil
}
