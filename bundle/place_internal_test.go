package bundle

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// TestPlaceFull names the disk of the bundle, not that of the scratch space.
func TestPlaceFull(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("the full disk of this test is /dev/full: %v", err)
	}
	defer full.Close()
	p := &place{of: &places{file: &disk.SteadyFile{File: full}}, blob: &format.Blob{}, room: 100}
	err = p.Write([]byte("frame"), 0)
	if !errors.Is(err, syscall.ENOSPC) ||
		!strings.HasPrefix(err.Error(),
			"the disk of the bundle in /dev is full: make room there, or choose another disk with -o, and run again") {
		t.Errorf("got %v", err)
	}
}

// TestOnlyCompressedLayersHaveAGuessedLength: a layer that is to come and already compressed will be stored, so the
// place behind it is known. Another one may shrink, so it is waited for.
func TestOnlyCompressedLayersHaveAGuessedLength(t *testing.T) {
	t.Parallel()
	layer, file := format.Blob{Sum: format.Sum{1}, Size: 100_000}, format.Blob{Sum: format.Sum{2}, Size: 100_000}
	p := &places{
		plan: &plan{layout: format.Layout{FrameSize: format.MinFrameSize, Blobs: []format.Blob{layer, file}}},
		src: &Incoming{coming: map[format.Sum]*coming{
			layer.Sum: {sum: layer.Sum, size: layer.Size, compressed: true},
			file.Sum:  {sum: file.Sum, size: file.Size},
		}},
		length: func(format.Sum) (int64, bool) { return 0, false }, // neither is here
	}
	p.last = format.Segment{Kind: format.SegmentBlob, Blob: 0}
	if n, ok := p.lastLen(); !ok || n != format.StoredLen(layer.Size) {
		t.Errorf("a compressed layer: %d bytes, %t", n, ok)
	}
	p.last.Blob = 1
	if n, ok := p.lastLen(); ok {
		t.Errorf("a file that may shrink: %d bytes", n)
	}
}
