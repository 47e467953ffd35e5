package software

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What people have given is found where it is served from, and extras that nobody knows are refused before anything
// is made.
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

// A release whose recipe does not name what its kubeadm asks for is not compiled: its images would be missing at the
// site.
func TestKubernetesReleaseMatchesKubeadm(t *testing.T) {
	t.Parallel()
	r := KubernetesReleases()[Kubernetes135]
	const constants = "\tDefaultEtcdVersion = \"3.6.6-0\"\n\tCoreDNSVersion = \"v1.13.1\"\n\tPauseVersion = \"3.10.1\"\n"
	if err := r.compare(constants); err != nil {
		t.Error(err)
	}
	for _, other := range []string{
		"", strings.Replace(constants, "3.6.6-0", "3.6.7-0", 1),
		strings.Replace(constants, "3.10.1", "3.10", 1),
	} {
		if err := r.compare(other); err == nil {
			t.Errorf("the release is taken for kubeadm's constants %q", other)
		}
	}
	// The programs of the lab's own release, and of another one, have places of their own.
	if own, next := OwnRelease().recipes()[0].Name, r.recipes()[0].Name; own != "kubernetes" ||
		next != "kubernetes-1.35" {
		t.Errorf("recipes %q and %q", own, next)
	}
}
