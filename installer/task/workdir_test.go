package task_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
)

// TestDryRunLeavesNoWorkDirectory has a dry run remove the directory that it made, and keep one that was there.
func TestDryRunLeavesNoWorkDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inventory.work")
	use := func(dryRun bool) {
		w, err := task.OpenWorkDir(path, dryRun)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Lock(task.Owner{}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use(true)
	if _, err := os.Stat(path); err == nil {
		t.Error("a dry run left its work directory")
	}
	use(false)
	use(true)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a dry run removed the work directory of another run: %v", err)
	}
}
