package helper

import (
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestUnpackIsBounded: a stream of zeros is a few KB.
func TestUnpackIsBounded(t *testing.T) {
	t.Parallel()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(z.EncodeAll(make([]byte, maxProgram+1), nil)); err == nil ||
		!strings.Contains(err.Error(), "67108864") {
		t.Errorf("got %v", err)
	}
}
