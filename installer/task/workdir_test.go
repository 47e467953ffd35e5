package task_test

import (
	"errors"
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

// TestDryRunKeepsTheLockOfAnotherRun: two runs meet in the directory that a dry run has made, and the dry run is
// second to lock it.
func TestDryRunKeepsTheLockOfAnotherRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inventory.work")
	open := func(dryRun bool) *task.WorkDir {
		w, err := task.OpenWorkDir(path, dryRun)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	dry, run := open(true), open(false)
	if err := run.Lock(task.Owner{}); err != nil {
		t.Fatal(err)
	}
	var locked *task.LockedError
	if err := dry.Lock(task.Owner{}); !errors.As(err, &locked) {
		t.Fatalf("a second run locks the directory: %v", err)
	}
	if err := dry.Close(); err != nil {
		t.Error(err)
	}
	third := open(false)
	if err := third.Lock(task.Owner{}); !errors.As(err, &locked) {
		t.Errorf("after the dry run the directory can be locked twice: %v", err)
	}
	if err := errors.Join(third.Close(), run.Close()); err != nil {
		t.Error(err)
	}
}

// TestLockOfARemovedWorkDirectory has a run that opened the directory of a dry run fail, once the dry run has removed
// it.
func TestLockOfARemovedWorkDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inventory.work")
	dry, err := task.OpenWorkDir(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := dry.Lock(task.Owner{}); err != nil {
		t.Fatal(err)
	}
	run, err := task.OpenWorkDir(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := dry.Close(); err != nil {
		t.Fatal(err)
	}
	if err := run.Lock(task.Owner{}); err == nil {
		t.Error("a run works in a directory that is gone")
	}
	_ = run.Close()
}
