package builder_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
)

// TestQuestionOfHostileFile gives a file of equal keys: the YAML decoder into Go values reports each pair of them, 8
// million here.
func TestQuestionOfHostileFile(t *testing.T) { //nolint:paralleltest // measures the memory of the process
	file := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(file, []byte(strings.Repeat("a: 1\n", 4000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := builder.NewQuestion(file); err == nil {
		t.Error("the file is taken for a manifest or a lock")
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("a file of 20 kB took %d MiB", took)
	}
}
