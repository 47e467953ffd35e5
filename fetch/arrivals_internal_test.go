package fetch

import (
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestArrivalOrder wants small blobs first, whatever their digests, and a long transfer before those beside it.
func TestArrivalOrder(t *testing.T) {
	t.Parallel()
	blobs := []*task{
		{blob: blob{digest: "c", size: 1 << 20}},
		{blob: blob{digest: "b", size: 1 << 20}},
		{blob: blob{digest: "z", size: 2}},
		{blob: blob{digest: "y", size: 9 << 20}},
		{blob: blob{digest: "d", size: smallBlob}},
		{blob: blob{digest: "a", size: smallBlob + 1}},
	}
	var got []digest.Digest
	for _, b := range arrivalOrder(blobs, 2) {
		got = append(got, b.digest)
	}
	if want := []digest.Digest{"d", "z", "y", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}
