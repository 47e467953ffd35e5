//go:build linux

package installer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// written lists files of a host as one text, for golden files.
func (h *rooted) written(t *testing.T, paths ...string) []byte {
	t.Helper()
	var b strings.Builder
	for _, path := range paths {
		info, err := os.Stat(filepath.Join(h.root, path))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "==> %s %04o\n%s", path, info.Mode().Perm(), h.content(path))
	}
	return []byte(b.String())
}

// Docker and CRI-O are installed with systemctl recorded: neither can be built here. What they read is in golden files.
func TestRuntimesAreInstalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, secret, programs, units []string }{
		"docker": {
			files:    []string{cri.DockerConfig, "/etc/systemd/system/docker.service", "/etc/systemd/system/cri-docker.service"},
			secret:   []string{cri.KubeletLogins},
			programs: []string{"/usr/local/bin/dockerd", "/usr/local/bin/cri-dockerd", "/opt/cni/bin/bridge", "/etc/docker/certs.d/10.0.0.3:5000/ca.crt"},
			units:    []string{"docker.service", "cri-docker.service"},
		},
		"crio": {
			files:    []string{"/etc/crio/crio.conf.d/10-kkbundle.conf", cri.CRIOPolicy, "/etc/systemd/system/crio.service", "/etc/containers/registries.conf.d/50-kkbundle.conf"},
			secret:   []string{"/etc/kkbundle/mirror-auth.json"},
			programs: []string{"/usr/local/bin/crio", "/opt/kkbundle/crio/bin/conmon", "/opt/kkbundle/crio/bin/crun", "/opt/cni/bin/bridge"},
			units:    []string{"crio.service"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			s.dialing("")
			b, h := clusterBundle(t, s.options.Cluster), s.hosts["cp1"]
			phases := []task.Phase{{Name: "install", Tasks: containerTasks(s.options.Cluster)}}
			if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			ran := strings.Join(h.said("systemctl"), "\n")
			for _, unit := range c.units {
				if !strings.Contains(ran, "systemctl restart "+unit) {
					t.Errorf("%s was not started:\n%s", unit, ran)
				}
			}
			tasktest.Golden(t, "runtime-"+name+".txt", h.written(t, c.files...))
			for _, path := range c.secret {
				info, err := os.Stat(filepath.Join(h.root, path))
				if err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s with the login: %v, %v", path, info, err)
				}
			}
			for _, path := range c.programs {
				if h.content(path) == "" {
					t.Errorf("there is no %s", path)
				}
			}
			s.states()
			if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			if changed := strings.Join(s.states(), ", "); strings.Contains(changed, "changed") {
				t.Errorf("a rerun: %s", changed)
			}
			resetLeavesNothing(t, s, append(c.files, c.programs...))
		})
	}
}

// Operators get programs that are ready for the runtime, where the cluster file names them.
func TestRuntimeTools(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.dialing("")
	s.options.Cluster = tasktest.Cluster(t, "cri: {tools: [crictl, nerdctl]}")
	h := s.hosts["cp1"]
	if err := s.run(t, clusterBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: cri.ToolTasks(s.options.Cluster)}}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.content(cri.CrictlConfig), "runtime-endpoint: unix:///run/containerd/containerd.sock\n") ||
		h.content("/usr/local/bin/crictl") != "member crictl\n" || h.content("/usr/local/bin/nerdctl") != "member nerdctl\n" {
		t.Errorf("crictl.yaml is %q, crictl %q", h.content(cri.CrictlConfig), h.content("/usr/local/bin/crictl"))
	}
	resetLeavesNothing(t, s, []string{cri.CrictlConfig, "/etc/nerdctl", "/usr/local/bin/crictl"})
	for _, text := range []string{
		"cri: {type: docker, tools: [nerdctl]}", "cri: {type: crio}\nimageRegistry: {type: none}",
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\ncri: {type: crio}",
	} {
		if tasktest.Cluster(t, text).CheckInstall() == nil {
			t.Errorf("install takes %s", text)
		}
	}
}

// resetLeavesNothing resets the site and looks for paths.
func resetLeavesNothing(t *testing.T, s *site, paths []string) {
	t.Helper()
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	for name, h := range s.hosts {
		for _, path := range paths {
			if _, err := os.Lstat(filepath.Join(h.root, path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s still has %s (%v)", name, path, err)
			}
		}
	}
}

// A Docker of others is found before anything of it is touched.
func TestForeignDockerIsRefused(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"a package": "/usr/bin/dockerd", "static programs": "/usr/local/bin/dockerd", "a configuration": cri.DockerConfig,
		"a unit of others": "/etc/systemd/system/docker.service",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: docker}")
			h := s.hosts["cp1"]
			h.put(t, path, "theirs\n")
			err := s.run(t, clusterBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: containerTasks(s.options.Cluster)}})
			var foreign interface{ Hint() string }
			if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "("+path+")") || foreign.Hint() == "" {
				t.Errorf("got %v", err)
			}
			if h.content(path) != "theirs\n" || h.content("/usr/local/bin/cri-dockerd") != "" {
				t.Error("the host was changed all the same")
			}
		})
	}
}

// An upgrade keeps the files of the cluster's runtime, and a failure collects its logs.
func TestRuntimeIsKeptAndAsked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, logs []string }{
		"containerd": {[]string{cri.ContainerdConfigFile, "/etc/systemd/system/containerd.service"}, []string{"kubelet", "containerd"}},
		"docker":     {[]string{cri.DockerConfig, "/etc/systemd/system/docker.service", "/etc/systemd/system/cri-docker.service"}, []string{"kubelet", "docker", "cri-docker"}},
		"crio":       {[]string{cri.CRIOConfigFile, "/etc/systemd/system/crio.service"}, []string{"kubelet", "crio"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			target, h := s.run(t, nil).Hosts[0], s.hosts["cp1"]
			for _, file := range c.files {
				h.put(t, file, "before "+file)
			}
			if err := keepTask(s.options.Cluster).Do(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			kept := h.tree(t)
			for _, file := range c.files {
				if !strings.Contains(kept, marks.CopiesDir+file+" ") {
					t.Errorf("%s is not kept:\n%s", file, kept)
				}
			}
			h.said("")
			failed := diagnose.Explain(t.Context(), target, time.Now(), &host.ExitError{Host: "cp1", Args: []string{"kubeadm"}, Code: 1})
			if failed == nil {
				t.Fatal("the failure is gone")
			}
			asked := strings.Join(h.said("journalctl"), "\n")
			for _, unit := range c.logs {
				if !strings.Contains(asked, "--unit="+unit+" ") {
					t.Errorf("%s is not asked for:\n%s", unit, asked)
				}
			}
			if n := strings.Count(asked, "--unit="); n != len(c.logs) {
				t.Errorf("%d logs, want %q:\n%s", n, c.logs, asked)
			}
		})
	}
}
