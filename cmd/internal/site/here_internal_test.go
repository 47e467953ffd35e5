package site

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOneBundle finds a plain, an encrypted and a split bundle.
func TestOneBundle(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{
		{"a.kkb"},
		{"a.kkb.age"},
		{"a.kkb.001", "a.kkb.002"},
		{"a.kkb.age.001", "a.kkb.age.parts.json"},
	} {
		dir := t.TempDir()
		for _, name := range append(files, "inventory.yaml", "a.kkb.sigstore.json") {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := oneBundle(dir); err != nil || got != files[0] {
			t.Errorf("got %q, %v; want %q", got, err, files[0])
		}
	}
}
