package builder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// TestLockedProgramsAreAsked: a program that the lock has in the cache refuses settings before a host is touched. One
// that is not at hand is a note, not an error.
func TestLockedProgramsAreAsked(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Kubernetes' programs run on Linux")
	}
	file := filepath.Join(t.TempDir(), "kubelet")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../installer/settingcheck/testdata/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	kubelet, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	store, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	d := digest.FromBytes(kubelet)
	w, _, err := store.Begin(t.Context(), d.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(kubelet); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), int64(len(kubelet)), d); err != nil {
		t.Fatal(err)
	}
	const version, platform = "v1.36.3", "linux/" + runtime.GOARCH
	c := clusterOf(t, "kubernetes: {version: "+version+", kubelet: {featureGates: {NoSuchGate: true}}, "+
		"kubeadm: {scheduler: {extraArgs: {v: '2'}}}}\n")
	ref, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: "kubelet"}, platform)
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := catalog.ImageRef(c, "kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	lock := &manifest.Lock{Items: []manifest.Pin{
		{Kind: manifest.ItemFile, Ref: ref, Platform: platform, Digest: d},
		{Kind: manifest.ItemImage, Ref: scheduler, Digest: digest.FromString("not in the cache")},
	}}
	var notes []string
	s := newSession(&Project{Manifest: &manifest.Bundle{}, clusters: []*manifest.Cluster{c}},
		Options{Events: func(e Event) { notes = append(notes, e.Text) }})
	s.cache = store
	err = (&builder{session: s, lock: lock}).checkSettings(t.Context())
	if refused, ok := errors.AsType[*InputError](err); !ok || !strings.Contains(refused.Error(),
		"kubernetes.kubelet.featureGates.NoSuchGate: kubelet v1.36.3 does not start with --feature-gates=NoSuchGate=true") {
		t.Errorf("got %v", err)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "kube-scheduler v1.36.3 could not be asked") {
		t.Errorf("notes %q", notes)
	}
}

// TestCheckNamesAbsentPrograms: without a lock, no program is asked, and the reason is given; without settings, nothing
// is missing.
func TestCheckNamesAbsentPrograms(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"": "", ", kubelet: {maxOpenFiles: 100}": "there is no lock beside the manifest; kkbundle build asks them",
	} {
		p := &Project{
			Manifest: &manifest.Bundle{}, File: filepath.Join(t.TempDir(), "manifest.yaml"),
			clusters: []*manifest.Cluster{clusterOf(t, "kubernetes: {version: v1.36.3"+settings+"}\n")},
		}
		if got, err := p.AskPrograms(t.Context(), t.TempDir()); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", settings, got, err, want)
		}
	}
}
