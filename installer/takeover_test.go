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
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// foreignContainerd gives a host a containerd of somebody else: a configuration, a unit, programs where ours go, and
// images. systemctl knows it as running until it is stopped.
func foreignContainerd(t *testing.T, h *sitetest.Rooted) map[string]string {
	t.Helper()
	files := map[string]string{
		"/etc/containerd/config.toml":                  "# the site's own\nversion = 2\n",
		"/etc/containerd/certs.d/docker.io/hosts.toml": "server = \"https://proxy.site.example\"\n",
		"/etc/systemd/system/containerd.service":       "[Service]\nExecStart=/usr/local/bin/containerd\n",
		"/usr/local/bin/containerd":                    "the site's program",
	}
	for name, text := range files {
		h.Put(t, name, text)
	}
	h.Put(t, "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "images and containers")
	return files
}

// TestTakenOverContainerd installs over another containerd and resets: its files are as they were, and only Kubernetes'
// containers are removed.
func TestTakenOverContainerd(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	files := foreignContainerd(t, h)
	// One container of Kubernetes runs until it is removed. Others are never named.
	h.Stub(t, "ctr", `echo "$*" >>"$0.log"
case "$*" in
"plugins ls") echo 'io.containerd.grpc.v1                     cri                      -              ok        ' ;;
"--namespace k8s.io tasks ls --quiet") [ -e "$0.removed" ] || echo pod1 ;;
"--namespace k8s.io tasks rm --force pod1") : >"$0.removed" ;;
esac`)
	b := sitetest.ClusterBundle(t, s.Options.Cluster)
	install := []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}
	for _, want := range []string{"containerd@cp1 changed", "containerd@cp1 done"} {
		if err := s.Run(t, b).Phases(t.Context(), install); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.States(), ", "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for name, text := range files {
		if !strings.Contains(name, "certs.d") && h.Content(name) == text {
			t.Errorf("%s is not ours: %q", name, text)
		}
	}
	info, err := os.Stat(filepath.Join(h.Root, marks.ContainerdBefore))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the copies: %v, %v", info, err)
	}
	s.Dialing("")
	for range 2 { // a repeated reset changes nothing
		if err := reset.Reset(t.Context(), s.Options); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if got := h.Content(name); got != text {
				t.Errorf("%s after the reset: %q, want %q", name, got, text)
			}
		}
		if h.Content("/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db") == "" {
			t.Error("the data of others is gone")
		}
	}
	if _, err := os.Stat(filepath.Join(h.Root, task.StateDir)); err == nil {
		t.Error("kkbundle's state is still there")
	}
	if _, err := os.Stat(filepath.Join(h.Root, "/usr/local/bin/ctr")); err == nil {
		t.Error("a program of ours is still there")
	}
	asked, err := os.ReadFile(filepath.Join(h.Stubs, "ctr.log"))
	if err != nil || !strings.Contains(string(asked), "tasks rm --force pod1") {
		t.Errorf("the container of Kubernetes was not removed: %q, %v", asked, err)
	}
	said := h.Said("systemctl")
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
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Stub(t, "systemctl", `case $1 in is-active|is-enabled) [ -e "$0.started" ];; restart) : >"$0.started";; esac`)
	if err := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster)).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}); err != nil {
		t.Fatal(err)
	}
	h.Put(t, "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "our images")
	h.Stub(t, "ctr", `echo "$*" >>"$0.log"
case "$*" in
"namespaces ls --quiet") echo k8s.io; echo default;;
*"tasks ls") echo 'TASK PID STATUS'; echo "of-$2 7 RUNNING"; echo "ended-$2 0 STOPPED";;
esac`)
	s.Dialing("")
	if err := reset.Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"/etc/containerd", "/var/lib/containerd", "/usr/local/bin/containerd",
		"/etc/systemd/system/containerd.service", task.StateDir,
	} {
		if _, err := os.Stat(filepath.Join(h.Root, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if said := h.Said("systemctl"); !slices.Contains(said, "systemctl kill --signal=KILL containerd.service") {
		t.Errorf("containers may be left: %q", said)
	}
	// Those outside of Kubernetes' slice are in no unit: they would outlive containerd.
	asked, err := os.ReadFile(filepath.Join(h.Stubs, "ctr.log"))
	if err != nil || !strings.Contains(string(asked), "--namespace k8s.io tasks rm --force of-k8s.io\n") ||
		!strings.Contains(string(asked), "--namespace default tasks rm --force of-default\n") ||
		strings.Contains(string(asked), "rm --force ended") {
		t.Errorf("containerd was asked, %v:\n%s", err, asked)
	}
}
