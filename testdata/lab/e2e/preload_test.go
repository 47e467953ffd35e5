package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestPreload installs a cluster without a registry: images travel from the bundle into containerd, over SSH.
func TestPreload(t *testing.T) {
	th := start(t, scenario{
		hosts:  2,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, dir+"/cluster.yaml", "imageRegistry: {type: registry}", "imageRegistry: {type: none}")
		},
	})
	th.makeBundle(t)
	// The worker has a part of the images when the run ends.
	th.killAt(t, "preload-images")
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(100*time.Millisecond))
	if out := th.kubectl(t, "get nodes --no-headers"); strings.Count(out, " Ready ") != 2 {
		t.Errorf("want two nodes that are Ready, got\n%s", out)
	}
	if out := th.kubectl(t, "-n web get pods --no-headers"); strings.Count(out, "Running") != 2 {
		t.Errorf("want two pods of the chart that run, got\n%s", out)
	}
	if out := th.on(t, 1, "ps -eo args= | grep [r]egistry' serve' || true"); out != "" {
		t.Errorf("a registry runs: %s", out)
	}
	th.preloaded(t)
	if r = run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	t.Logf("rerun: %s", r.took.Round(100*time.Millisecond))
	// An image that somebody deletes comes back, and nothing else is sent.
	const app = "docker.io/lab/labapp:1"
	th.on(t, 2, "ctr -n k8s.io images delete --sync "+app)
	run(t, th.site(t, "install")).must(t, 0)
	if out := th.on(t, 2, "ctr -n k8s.io images list -q"); !strings.Contains(out, app) {
		t.Errorf("%s is not back", app)
	}
	run(t, th.site(t, "reset", "--yes")).must(t, 0)
	if out := th.on(t, 1, "ls -d /etc/containerd /var/lib/containerd/* 2>/dev/null; ps -eo comm= | grep -E 'containerd|kube'; true"); out != "" {
		t.Errorf("reset leaves\n%s", out)
	}
	th.packets(t)
}

// preloaded checks that each host has what its roles need, pinned, and no more.
func (th *thread) preloaded(t *testing.T) {
	t.Helper()
	for number, has := range map[int]bool{1: true, 2: false} {
		out := th.on(t, number, "ctr -n k8s.io images list")
		if strings.Contains(out, "registry.k8s.io/kube-apiserver:") != has {
			t.Errorf("host%d: is the control plane's image there? want %t, got\n%s", number, has, out)
		}
		for line := range strings.Lines(out) {
			// What the CRI plugin itself calls images: by the digest of their configuration.
			if named := strings.Contains(line, "/"); named && !strings.HasPrefix(line, "sha256:") &&
				!strings.HasPrefix(line, "REF") &&
				!strings.Contains(line, "io.cri-containerd.pinned=pinned") {
				t.Errorf("host%d: not pinned: %s", number, line)
			}
		}
	}
}
