package bundle_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
)

func TestBaseName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"site.001", "site.parts.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"a.kkb": "a.kkb", "a.kkb.001": "a.kkb", "a.kkb.parts.json": "a.kkb", "a.kkb.000": "a.kkb.000", "a.zip": "a.zip",
		"site.001": "site", "site": "site",
	} {
		if got := bundle.BaseName(filepath.Join(dir, name)); got != filepath.Join(dir, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
