package bundle

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// TestPlaceFull names the disk of the bundle, not that of the scratch space.
func TestPlaceFull(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("the full disk of this test is /dev/full: %v", err)
	}
	defer full.Close()
	p := &place{of: &places{file: &steadyFile{File: full}}, blob: &format.Blob{}, room: 100}
	err = p.write([]byte("frame"), 0)
	if !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), "the disk of the bundle in /dev is full: make room there, or choose another disk with -o, and run again") {
		t.Errorf("got %v", err)
	}
}
