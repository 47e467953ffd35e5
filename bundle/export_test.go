package bundle

import (
	"bytes"
	"crypto/sha256"
)

// DecodeAndHash is what no verification of a bundle can do without.
func DecodeAndHash(data []byte) error {
	r, err := NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	var out []byte
	h := sha256.New()
	for _, f := range r.frames {
		if out, err = r.decode(data[f.Off:][:f.Len], out, f); err != nil {
			return err
		}
		h.Write(out)
	}
	h.Sum(nil)
	return nil
}
