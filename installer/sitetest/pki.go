package sitetest

import (
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
)

// NewWorkDir makes a work directory.
func NewWorkDir(t *testing.T) *task.WorkDir {
	t.Helper()
	w, err := task.OpenWorkDir(filepath.Join(t.TempDir(), "work"), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}
