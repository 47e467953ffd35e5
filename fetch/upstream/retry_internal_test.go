package upstream

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// fullDisk is the error of a store that knows which of its disks is full.
type fullDisk struct{ error }

func (fullDisk) FullDisk() string { return "no space for the bundle in /site" }

// TestStoreError: a store's own words about its disk count, then those about the cache's disk, and no attempt is made
// again.
func TestStoreError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cause error
		want  string
	}{
		{fmt.Errorf("write: %w", fullDisk{syscall.ENOSPC}), "no space for the bundle in /site"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "the disk of the cache is full: make room"},
		{fmt.Errorf("write: %w", syscall.EDQUOT), "the disk of the cache is full: make room"},
		{errors.New("a link is in the way"), "cache: a link is in the way"},
	} {
		err := &StoreError{c.cause}
		if !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, c.cause) || retryable(fmt.Errorf("blob: %w", err)) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}
