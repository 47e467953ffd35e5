package packed_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/packed"
)

// noise returns bytes that no compressor makes smaller.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TestDictionary: what a program has in common with its dictionary takes no room, wherever it is in both.
func TestDictionary(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	dictionary := noise(size)
	program := append([]byte("a program"), dictionary[size/2:]...)
	data, err := packed.Pack(program, dictionary)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > size/100 {
		t.Errorf("%d bytes that the dictionary has took %d", len(program), len(data))
	}
	if got, err := packed.Unpack(data, dictionary); err != nil || !bytes.Equal(got, program) {
		t.Errorf("unpacked: %d bytes, %v", len(got), err)
	}
	for _, other := range [][]byte{nil, dictionary[:size-1]} {
		if got, err := packed.Unpack(data, other); err == nil {
			t.Errorf("with another dictionary of %d bytes: %d bytes and no error", len(other), len(got))
		}
	}
	again, err := packed.Pack(program, dictionary)
	if err != nil || !bytes.Equal(again, data) {
		t.Errorf("packed again: other bytes, %v", err)
	}
}

// TestUnpackIsBounded: a stream of zeros is a few KB.
func TestUnpackIsBounded(t *testing.T) {
	t.Parallel()
	data, err := packed.Pack(make([]byte, packed.MaxProgram+1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := packed.Unpack(data, nil); err == nil || !strings.Contains(err.Error(), "67108864") {
		t.Errorf("got %v", err)
	}
}
