package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pod makes a directory like /proc with one process of a pod and one of another, and returns the pods' file systems.
func pod(t *testing.T) (p VolumeProof, own, foreign string) {
	t.Helper()
	dir := t.TempDir()
	p = VolumeProof{Proc: filepath.Join(dir, "proc"), PodUID: "0e4f-11", Dir: "/kkbundle-1", Text: "text"}
	own, foreign = filepath.Join(dir, "own"), filepath.Join(dir, "foreign")
	for process, of := range map[string]struct{ root, group string }{
		"100": {foreign, "0::/kubepods/besteffort/pod77/x"},
		"200": {own, "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0e4f_11.slice/cri-1.scope"},
	} {
		for _, made := range []string{filepath.Join(of.root, "kkbundle-1"), filepath.Join(p.Proc, process)} {
			if err := os.MkdirAll(made, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(of.root, filepath.Join(p.Proc, process, "root")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.Proc, process, "cgroup"), []byte(of.group+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p, own, foreign
}

func TestVolumeProof(t *testing.T) {
	t.Parallel()
	p, own, foreign := pod(t)
	for range 2 { // an interrupted attempt is repeated
		if err := p.Write(); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(own, "kkbundle-1", "proof")); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(foreign, "kkbundle-1", "proof")); err == nil {
		t.Error("another pod's directory was written to")
	}
	other := p
	other.Text = "other"
	if err := other.Read(); err == nil || !strings.Contains(err.Error(), "other data") {
		t.Errorf("got %v", err)
	}
	if err := p.Read(); err != nil {
		t.Error(err)
	}
	if err := p.Read(); err == nil {
		t.Error("the file is still there")
	}
	p.PodUID = ""
	if err := p.Write(); err == nil || !strings.Contains(err.Error(), "no process") {
		t.Errorf("without a pod: %v", err)
	}
}

// TestVolumeProofFollowsNoLinkOut: a container replaces the volume's directory, or a neighbour on the volume the
// file, by a link to a file of the host.
func TestVolumeProofFollowsNoLinkOut(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"kkbundle-1", "kkbundle-1/proof"} {
		for _, relative := range []bool{false, true} {
			p, own, _ := pod(t)
			host := filepath.Join(filepath.Dir(own), "host")
			if err := os.Mkdir(host, 0o755); err != nil {
				t.Fatal(err)
			}
			target := host
			if link != "kkbundle-1" {
				target = filepath.Join(host, "shadow")
			}
			if err := os.WriteFile(filepath.Join(host, "shadow"), []byte("root:x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(host, "shadow"), filepath.Join(host, "proof")); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(own, link)
			if err := os.RemoveAll(at); err != nil {
				t.Fatal(err)
			}
			if relative {
				target, _ = filepath.Rel(filepath.Dir(at), target)
			}
			if err := os.Symlink(target, at); err != nil {
				t.Fatal(err)
			}
			_, _ = p.Write(), p.Read()
			if data, err := os.ReadFile(filepath.Join(host, "shadow")); err != nil || string(data) != "root:x" {
				t.Errorf("%s, relative %t: the host's file has %q, %v", link, relative, data, err)
			}
		}
	}
}
