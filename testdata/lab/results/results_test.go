package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest"
)

func TestWriteReplacesTheResultOfTheSameHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := Result{
		Test: "TestA", Outcome: Failed, Date: "2026-11-22", Version: "v1", Lab: Namespaces,
		Hosts: []string{"debian/13", "debian/11", "debian/13"},
	}
	second, other := first, first
	second.Outcome, second.StandIns = Passed, []string{"kube-vip"}
	second.Given = []string{"tool-1.tgz from lab.test/tool at 28bec598f5f3"}
	other.Hosts = []string{"debian/12"}
	for _, r := range []Result{first, second, other} {
		if err := Write(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(dir)
	second.Hosts = []string{"debian/11", "debian/13"}
	if diff := cmp.Diff([]Result{second, other}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestLoadRefusesAResultWithoutItsFacts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"test":"TestA","outcome":"passed","lab":"lab","hosts":["debian/12"],"date":"2026-11-22"}`:               "version",
		`{"test":"TestA","outcome":"passed","lab":"lab","hosts":["debian/12"],"date":"yesterday","version":"v1"}`: "yesterday",
		`{"test":"TestA","outcome":"perhaps","lab":"lab","hosts":["debian/12"]}`:                                  "perhaps",
		`{"test":"TestA","outcome":"passed","lab":"processes","hosts":["debian/12"]}`:                             "processes",
		`{"test":"TestB","outcome":"passed","lab":"lab","hosts":["debian/12"]}`:                                   "TestB.debian-12.json",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "TestA.debian-12.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
}

func TestProcessesHaveNoHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := Result{Test: "TestA", Outcome: Passed, Date: "2026-11-22", Version: "v1", Lab: Processes}
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if diff := cmp.Diff([]Result{want}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// Results name architectures as bundles do.
func TestArchOf(t *testing.T) {
	t.Parallel()
	for machine, want := range map[string]string{"x86_64\n": "amd64", "aarch64\n": "arm64", "riscv64": "riscv64"} {
		if got := ArchOf(machine); got != want {
			t.Errorf("%q: got %q, want %q", machine, got, want)
		}
	}
}

func TestHostID(t *testing.T) {
	t.Parallel()
	if got := HostID("PRETTY_NAME=\"Debian GNU/Linux 11 (bullseye)\"\nID=debian\nVERSION_ID=\"11\"\n"); got != "debian/11" {
		t.Errorf("got %s", got)
	}
}

func TestClusterOfHasDefaults(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: lab}\nkubernetes: {version: v1.34.3}\ncri: {type: docker}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ClusterOf(file)
	want := Cluster{
		manifest.DistributionKubernetes, "v1.34.3", manifest.RuntimeDocker, manifest.NetworkFlannel,
		manifest.RegistryPlain, manifest.EtcdInternal, manifest.EndpointLocal,
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
