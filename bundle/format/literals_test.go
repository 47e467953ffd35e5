package format

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"
)

// TestLiteralsAreCompressed has content without repetitions whose bytes are unevenly distributed: only entropy coding
// of literals makes it smaller. Every level does.
func TestLiteralsAreCompressed(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	random := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	weights := make([]byte, 0, size) // bfloat16: the upper half of a float32
	numbers := rand.New(rand.NewChaCha8([32]byte{2}))
	for len(weights) < size {
		weights = binary.LittleEndian.AppendUint16(weights,
			uint16(math.Float32bits(float32(numbers.NormFloat64()*0.02))>>16))
	}
	for name, c := range map[string]struct {
		content []byte
		percent int // at most
	}{
		"hex":    {[]byte(hex.EncodeToString(random))[:size], 52},
		"base64": {[]byte(base64.StdEncoding.EncodeToString(random))[:size], 78},
		"bf16":   {weights, 90},
	} {
		for _, content := range [][]byte{c.content, c.content[:minSampled/2]} {
			for _, level := range Levels() {
				e, err := NewEncoder(level, 1)
				if err != nil {
					t.Fatal(err)
				}
				frame := e.AppendFrame(nil, content)
				if len(frame)*100 > len(content)*c.percent {
					t.Errorf("%s, level %s: %d bytes became %d, want at most %d %%", name, level, len(content),
						len(frame), c.percent)
				}
				dec, err := NewDecoder(1)
				if err != nil {
					t.Fatal(err)
				}
				back, err := DecodeFrame(dec, frame, nil, int64(len(content)))
				if err != nil || !bytes.Equal(back, content) {
					t.Errorf("%s, level %s: it does not decode to what it was: %v", name, level, err)
				}
			}
		}
	}
}
