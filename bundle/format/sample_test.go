package format

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestSampledContent compresses what has something to gain and stores the rest, whichever way that was found out.
func TestSampledContent(t *testing.T) {
	e, err := NewEncoder(LevelDefault, 1)
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 4<<20)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(random); err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("the same again "), len(random)/15+1)[:len(random)]
	half := append(bytes.Clone(random[:2<<20]), text[:2<<20]...)
	few := bytes.Clone(random)
	copy(few[100<<10:], text[:64<<10]) // between the first two samples
	for name, c := range map[string]struct {
		content []byte
		stored  bool
	}{
		"random": {random, true}, "text": {text, false}, "half": {half, false}, "a little text": {few, true},
		"just below sampling": {random[:minSampled-1], true}, "text just below sampling": {text[:minSampled-1], false},
		"shortest sampled": {random[:minSampled], true}, "shortest text sampled": {text[:minSampled], false},
	} {
		t.Run(name, func(t *testing.T) {
			frame := e.AppendFrame(nil, c.content)
			if stored := len(frame) > len(c.content); stored != c.stored {
				t.Errorf("%d bytes became %d", len(c.content), len(frame))
			}
			dec, err := NewDecoder(1)
			if err != nil {
				t.Fatal(err)
			}
			back, err := DecodeFrame(dec, frame, nil, int64(len(c.content)))
			if err != nil || !bytes.Equal(back, c.content) {
				t.Errorf("it does not decode to what it was: %v", err)
			}
		})
	}
}
