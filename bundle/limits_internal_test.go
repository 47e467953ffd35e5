package bundle

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// TestCheckDirectory compares with the directory that would be written: what does not fit is refused from the sizes
// alone, and what fits by more than a tenth is not.
func TestCheckDirectory(t *testing.T) {
	t.Parallel()
	for blobs, fits := range map[int]bool{1000: true, 480_000: true, 620_000: false} {
		sizes := make([]int64, blobs)
		d := format.Directory{Encoder: "x", FrameSize: format.MinFrameSize, Blobs: make([]format.Blob, blobs)}
		for i := range sizes {
			sizes[i] = int64(i % 5000)
			d.Blobs[i] = format.Blob{Size: sizes[i], Place: format.Place{
				Frame: uint32(i / 20),
				At:    uint32(i % 20 * 5000),
			}}
		}
		_, written := d.Marshal()
		err := CheckDirectory(slices.Values(sizes))
		if (err == nil) != fits || (written == nil) != fits {
			t.Errorf("%d blobs: %v; written: %v", blobs, err, written)
		}
	}
}
