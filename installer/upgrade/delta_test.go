//go:build linux

package upgrade

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// versioned returns the bundle of a version of Kubernetes, whose programs name the version.
func versioned(t *testing.T, version string) (*manifest.Cluster, *bundletest.Bundle) {
	t.Helper()
	c := tasktest.Cluster(t, "kubernetes: {version: "+version+"}")
	return c, sitetest.BuiltWith(t, c, func(name string) []byte {
		data := sitetest.FileContent(t, c, name)
		if strings.HasPrefix(string(data), "#!") {
			data = append(data, "# "+version+strings.Repeat("\n# the same in each version", 5000)+"\n"...)
		}
		return data
	})
}

// openDelta makes a delta between two bundles and opens it with the older one, as the commands open OLD.kkb+x.kkd.
func openDelta(t *testing.T, old, next *bundletest.Bundle) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "next.kkd")
	made := delta.Options{Old: &bundle.From{Name: old.Path, Reader: old.Reader}, Output: path}
	if _, err := delta.Create(t.Context(), bundle.From{Name: next.Path, Reader: next.Reader}, made); err != nil {
		t.Fatal(err)
	}
	base, err := bundle.Open(old.Path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := delta.Open(t.Context(), delta.Options{
		Old:     &bundle.From{Name: old.Path, Reader: base},
		Scratch: t.TempDir(),
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestInstallWithADelta: programs of the new bundle get onto simulated hosts from the older bundle and a delta, and
// images are at hand.
func TestInstallWithADelta(t *testing.T) {
	t.Parallel()
	_, old := versioned(t, "v1.34.2")
	c, next := versioned(t, "v1.34.3")
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.Cluster = c
	r := s.Run(t, openDelta(t, old, next))
	if err := r.Phases(t.Context(), []task.Phase{
		{Name: "init", Tasks: []task.Task{siteregistry.CertificatesTask(), machine.HostsTask(), machine.SwapTask(c)}},
		{Name: "install", Tasks: []task.Task{cri.ContainerdTask(), kubeadm.KubeletTask(c)}},
	}); err != nil {
		t.Fatal(err)
	}
	for name, h := range s.Hosts {
		if !strings.Contains(h.Content("/usr/local/bin/kubelet"), "# v1.34.3\n") ||
			h.Content("/etc/containerd/config.toml") == "" {
			t.Errorf("%s does not have the new bundle's kubelet and containerd", name)
		}
	}
}

// TestUpgradeWithADelta upgrades simulated hosts with the older bundle and a delta in place of the new bundle.
func TestUpgradeWithADelta(t *testing.T) {
	t.Parallel()
	_, old := versioned(t, "v1.34.2")
	c, next := versioned(t, "v1.34.3")
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
	s.Options.Cluster = c
	u := upgradeWith(s, t, openDelta(t, old, next))
	if _, err := u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps := f.steps(); !slices.Contains(steps, "cp1: kubeadm upgrade apply v1.34.3 --yes") {
		t.Errorf("steps: %q", steps)
	}
	for name, h := range s.Hosts {
		if !strings.Contains(h.Content("/usr/local/bin/kubelet"), "# v1.34.3\n") {
			t.Errorf("%s does not have the new bundle's kubelet", name)
		}
	}
}
