package software

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEditMustMatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(name,
		[]byte("module k8s.io/kubernetes\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for _, e := range kubernetes(KubernetesVersion).Edits {
		if err := e.apply(dir); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	want := "module lab.local/k8s\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\n"
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if err := (edit{"go.mod", "no such line", ""}).apply(dir); err == nil {
		t.Error("an edit that matched nothing went through: a changed upstream would be built unpatched")
	}
}

func TestKeyFollowsRecipe(t *testing.T) {
	t.Parallel()
	key := func(r recipe) string {
		k, err := keyOf(r, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	changed := coredns(CoreDNSVersion)
	changed.Tags = "x"
	one, again := key(coredns(CoreDNSVersion)), key(coredns(CoreDNSVersion))
	if one != again || one == key(changed) || one == key(cni()) {
		t.Errorf("keys: %s, %s; changed %s", one, again, key(changed))
	}
}

func TestOutputIsWholeOrAbsent(t *testing.T) {
	t.Parallel()
	b := &builder{dir: t.TempDir(), log: io.Discard}
	broken := errors.New("disk full")
	_, err := b.output("thing", "1", func(tmp string) error {
		return errors.Join(os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if left, err := os.ReadDir(b.dir); err != nil || len(left) != 0 {
		t.Fatalf("left after a failure: %v, %v", left, err)
	}
	for i, want := range []int{1, 1} { // the second time it is there
		made := 0
		dir, err := b.output("thing", "1", func(tmp string) error {
			made++
			return os.WriteFile(filepath.Join(tmp, "whole"), nil, 0o644)
		})
		if _, statErr := os.Stat(filepath.Join(dir, "whole")); err != nil || statErr != nil || made != want-i {
			t.Errorf("round %d: made %d times, %v, %v", i, made, err, statErr)
		}
	}
	// What a killed build leaves is removed by the next.
	if err := errors.Join(os.Mkdir(filepath.Join(b.dir, "tmp-x"), 0o500), b.sweep()); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(b.dir, "tmp-*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

func TestTarIsDeterministic(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "command")
	if err := os.WriteFile(from, []byte("\x7fELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	entries := []entry{
		{Name: "b/", Mode: 0o1777},
		{Name: "c", Link: "b"},
		{Name: "a", Text: "text"},
		{Name: "d", From: from, Binds: true},
	}
	backwards := []entry{entries[3], entries[2], entries[1], entries[0]}
	var one, two bytes.Buffer
	if err := errors.Join(writeTar(&one, entries), writeTar(&two, backwards)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the order of entries changes the archive")
	}
	type member struct {
		Name, Link string
		Mode       fs.FileMode
		Size       int64
	}
	var got []member
	for r := tar.NewReader(&one); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if binds := h.PAXRecords["SCHILY.xattr.security.capability"]; len(binds) != 20 && h.Name == "d" ||
			binds != "" && h.Name != "d" {
			t.Errorf("%s has the capabilities %q", h.Name, binds)
		}
		got = append(got, member{h.Name, h.Linkname, h.FileInfo().Mode(), h.Size})
	}
	want := []member{
		{"a", "", 0o644, 4},
		{"b/", "", fs.ModeDir | fs.ModeSticky | 0o777, 0},
		{"c", "b", fs.ModeSymlink | 0o777, 0},
		{"d", "", 0o755, 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
