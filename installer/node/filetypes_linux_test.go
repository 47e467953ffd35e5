package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFileTypes mounts an ext4 without types of files in its directories. An xfs with ftype=0 answers in the same way.
func TestFileTypes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if lacksFileTypes(dir) {
		t.Errorf("%s: the file system of temporary files lacks types", dir)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-O", "^filetype", image},
		{"mount", "-o", "loop", image, at},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	if !lacksFileTypes(at) {
		t.Error("a file system without types of files was not noticed")
	}
}
