package software

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What people have given is found where it is served from, and extras that nobody knows are refused before anything is made.
func TestGivenAndUnknownExtras(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KKBUNDLE_LAB", dir)
	const url = "example.test/releases/tool.tgz"
	file, there, err := Given(url)
	if err != nil || there {
		t.Fatalf("%s is there before anybody gave it: %v", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("tool"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, there, err = Given(url); err != nil || !there {
		t.Errorf("%s is not found: %v", file, err)
	}
	b := &builder{dir: dir, log: io.Discard, bin: map[string]string{}}
	dirs, err := b.extras(t.Context(), nil)
	if err != nil || len(dirs) != 1 || filepath.Join(dirs[0], url) != file {
		t.Errorf("given files are served from %q, %v", dirs, err)
	}
	if _, err := b.extras(t.Context(), []Extra{"podman"}); err == nil || !strings.Contains(err.Error(), "podman") {
		t.Errorf("an unknown extra: %v", err)
	}
}

// A recipe that renames nothing has the key that it had before recipes could: nobody compiles anew for it.
func TestRenameIsNoPartOfOtherKeys(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(runc())
	if err != nil || strings.Contains(string(text), "Rename") {
		t.Errorf("%s, %v", text, err)
	}
}
