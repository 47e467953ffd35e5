package disk

import (
	"os"
	"testing"
)

// TestRefusedSyncOfDirectory: a file system that cannot sync directories does not fail a finished bundle. /proc is the
// stand-in for CIFS and FUSE here: the kernel refuses it there with the same error.
func TestRefusedSyncOfDirectory(t *testing.T) {
	t.Parallel()
	f, err := os.Open("/proc/self")
	if err != nil {
		t.Skip("no /proc")
	}
	defer f.Close()
	if f.Sync() == nil {
		t.Skip("directories of /proc can be synced here")
	}
	if err := SyncDir("/proc/self"); err != nil {
		t.Errorf("refused: %v", err)
	}
	if err := SyncDir(t.TempDir() + "/none"); err == nil {
		t.Error("a missing directory is no error")
	}
}
