//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

// foreignContainerd gives a host a containerd of somebody else: a configuration, a unit, programs where ours go, and images.
// systemctl knows it as running until it is stopped.
func foreignContainerd(t *testing.T, h *rooted) map[string]string {
	t.Helper()
	files := map[string]string{
		"/etc/containerd/config.toml":                  "# the site's own\nversion = 2\n",
		"/etc/containerd/certs.d/docker.io/hosts.toml": "server = \"https://proxy.site.example\"\n",
		"/etc/systemd/system/containerd.service":       "[Service]\nExecStart=/usr/local/bin/containerd\n",
		"/usr/local/bin/containerd":                    "the site's program",
	}
	for name, text := range files {
		h.put(t, name, text)
	}
	h.put(t, "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "images and containers")
	return files
}

// TestTakenOverContainerd installs over another containerd and resets: its files are as they were, and only Kubernetes'
// containers are removed.
func TestTakenOverContainerd(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	files := foreignContainerd(t, h)
	// One container of Kubernetes runs until it is removed. Others are never named.
	h.stub(t, "ctr", `echo "$*" >>"$0.log"
case "$*" in
"plugins ls") echo 'io.containerd.grpc.v1                     cri                      -              ok        ' ;;
"--namespace k8s.io tasks ls --quiet") [ -e "$0.removed" ] || echo pod1 ;;
"--namespace k8s.io tasks rm --force pod1") : >"$0.removed" ;;
esac`)
	b := clusterBundle(t, s.options.Cluster)
	install := []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}
	for _, want := range []string{"containerd@cp1 changed", "containerd@cp1 done"} {
		if err := s.run(t, b).Phases(t.Context(), install); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.states(), ", "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for name, text := range files {
		if !strings.Contains(name, "certs.d") && h.content(name) == text {
			t.Errorf("%s is not ours: %q", name, text)
		}
	}
	info, err := os.Stat(filepath.Join(h.root, marks.ContainerdBefore))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the copies: %v, %v", info, err)
	}
	s.dialing("")
	for range 2 { // a repeated reset changes nothing
		if err := Reset(t.Context(), s.options); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if got := h.content(name); got != text {
				t.Errorf("%s after the reset: %q, want %q", name, got, text)
			}
		}
		if h.content("/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db") == "" {
			t.Error("the data of others is gone")
		}
	}
	if _, err := os.Stat(filepath.Join(h.root, task.StateDir)); err == nil {
		t.Error("kkbundle's state is still there")
	}
	if _, err := os.Stat(filepath.Join(h.root, "/usr/local/bin/ctr")); err == nil {
		t.Error("a program of ours is still there")
	}
	asked, err := os.ReadFile(filepath.Join(h.stubs, "ctr.log"))
	if err != nil || !strings.Contains(string(asked), "tasks rm --force pod1") {
		t.Errorf("the container of Kubernetes was not removed: %q, %v", asked, err)
	}
	said := h.said("systemctl")
	if slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, "kill") }) {
		t.Errorf("containers of others were killed: %q", said)
	}
	if last := said[len(said)-1]; !slices.Contains(said, "systemctl restart containerd.service") {
		t.Errorf("the site's containerd was not started again: %q, %s", said, last)
	}
}

// TestContainerdOfOurs has no other containerd: reset stops all containers and removes everything.
func TestContainerdOfOurs(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	h.stub(t, "systemctl", `case $1 in is-active|is-enabled) [ -e "$0.started" ];; restart) : >"$0.started";; esac`)
	if err := s.run(t, clusterBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}); err != nil {
		t.Fatal(err)
	}
	h.put(t, "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "our images")
	s.dialing("")
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/etc/containerd", "/var/lib/containerd", "/usr/local/bin/containerd", "/etc/systemd/system/containerd.service", task.StateDir} {
		if _, err := os.Stat(filepath.Join(h.root, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if said := h.said("systemctl"); !slices.Contains(said, "systemctl kill --signal=KILL containerd.service") {
		t.Errorf("containers may be left: %q", said)
	}
}
