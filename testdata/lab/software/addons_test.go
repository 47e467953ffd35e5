package software

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program that has to be given and is not there is named; one that is there becomes a layer, and another one
// another output.
func TestGivenProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KKBUNDLE_LAB", dir)
	s := &imageSet{work: t.TempDir(), made: map[string]*layer{}}
	if _, err := s.given(KubeVIPProgram, "kube-vip"); err == nil || !strings.Contains(err.Error(), KubeVIPProgram) {
		t.Errorf("a program that nobody has given: %v", err)
	}
	before, err := givenState(KubeVIPProgram)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := Given(KubeVIPProgram)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("program"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.given(KubeVIPProgram, "kube-vip"); err != nil {
		t.Error(err)
	}
	if after, err := givenState(KubeVIPProgram); err != nil || after == before {
		t.Errorf("the key does not follow the program: %q, %v", after, err)
	}
}

// Content without extras that are images is the lab's own; a copy of a registry's storage has all files and shares
// none of its directories.
func TestContentWithImages(t *testing.T) {
	t.Parallel()
	b := &builder{dir: t.TempDir()}
	if got, err := b.withImages(t.Context(), "base", []Extra{Docker}); err != nil || got != "base" {
		t.Errorf("got %q, %v", got, err)
	}
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	if err := os.MkdirAll(filepath.Join(from, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "a", "b", "data"), []byte("blob"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := linkTree(from, to); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "a", "b", "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(to, "a", "b", "data"))
	left, globErr := filepath.Glob(filepath.Join(from, "a", "b", "*"))
	if err != nil || globErr != nil || string(data) != "blob" || len(left) != 1 {
		t.Errorf("%q, %v, %v; the original has %q", data, err, globErr, left)
	}
}
