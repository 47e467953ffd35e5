//go:build linux

package installer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// Docker and CRI-O are installed with systemctl recorded: neither can be built here. What they read is in golden files.
func TestRuntimesAreInstalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, secret, programs, units []string }{
		"docker": {
			files: []string{
				cri.DockerConfig, "/etc/systemd/system/docker.service",
				"/etc/systemd/system/cri-docker.service",
			},
			secret: []string{cri.KubeletLogins},
			programs: []string{
				"/usr/local/bin/dockerd", "/usr/local/bin/cri-dockerd", "/opt/cni/bin/bridge",
				"/etc/docker/certs.d/10.0.0.3:5000/ca.crt",
			},
			units: []string{"docker.service", "cri-docker.service"},
		},
		"crio": {
			files: []string{
				"/etc/crio/crio.conf.d/10-kkbundle.conf", cri.CRIOPolicy,
				"/etc/systemd/system/crio.service", "/etc/containers/registries.conf.d/50-kkbundle.conf",
			},
			secret: []string{"/etc/kkbundle/mirror-auth.json"},
			programs: []string{
				"/usr/local/bin/crio", "/opt/kkbundle/crio/bin/conmon", "/opt/kkbundle/crio/bin/crun",
				"/opt/cni/bin/bridge",
			},
			units: []string{"crio.service"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1")
			s.Options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			s.Dialing("")
			b, h := sitetest.ClusterBundle(t, s.Options.Cluster), s.Hosts["cp1"]
			phases := []task.Phase{{Name: "install", Tasks: plan.ContainerTasks(s.Options.Cluster)}}
			if err := s.Run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			ran := strings.Join(h.Said("systemctl"), "\n")
			for _, unit := range c.units {
				if !strings.Contains(ran, "systemctl restart "+unit) {
					t.Errorf("%s was not started:\n%s", unit, ran)
				}
			}
			tasktest.Golden(t, "runtime-"+name+".txt", h.Written(t, c.files...))
			for _, path := range c.secret {
				info, err := os.Stat(filepath.Join(h.Root, path))
				if err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s with the login: %v, %v", path, info, err)
				}
			}
			for _, path := range c.programs {
				if h.Content(path) == "" {
					t.Errorf("there is no %s", path)
				}
			}
			s.States()
			if err := s.Run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			if changed := strings.Join(s.States(), ", "); strings.Contains(changed, "changed") {
				t.Errorf("a rerun: %s", changed)
			}
			resetLeavesNothing(t, s, append(c.files, c.programs...))
		})
	}
}

// Operators get programs that are ready for the runtime, where the cluster file names them.
func TestRuntimeTools(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Dialing("")
	s.Options.Cluster = tasktest.Cluster(t, "cri: {tools: [crictl, nerdctl]}")
	h := s.Hosts["cp1"]
	if err := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster)).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: cri.ToolTasks(s.Options.Cluster)}}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.Content(cri.CrictlConfig), "runtime-endpoint: unix:///run/containerd/containerd.sock\n") ||
		h.Content("/usr/local/bin/crictl") != "member crictl\n" ||
		h.Content("/usr/local/bin/nerdctl") != "member nerdctl\n" {
		t.Errorf("crictl.yaml is %q, crictl %q", h.Content(cri.CrictlConfig), h.Content("/usr/local/bin/crictl"))
	}
	// In the directory of pod networks nerdctl's would be a second one, which the precheck refuses.
	if got := h.Content("/etc/nerdctl/nerdctl.toml"); !strings.Contains(got, `cni_netconfpath = "/etc/nerdctl/cni"`) {
		t.Errorf("nerdctl.toml is\n%s", got)
	}
	h.Put(t, "/run/nerdctl/k8s.io/0/port-reserver.pid", "7")
	h.Put(t, "/var/lib/nerdctl/0/volumes/k8s.io/data", "an operator's")
	resetLeavesNothing(t, s, []string{cri.CrictlConfig, "/etc/nerdctl", "/usr/local/bin/crictl", "/run/nerdctl"})
	if h.Content("/var/lib/nerdctl/0/volumes/k8s.io/data") == "" {
		t.Error("reset took volumes without being told to")
	}
	if said := h.Said("ip"); !slices.Contains(said, "ip link delete nerdctl0") {
		t.Errorf("nerdctl's bridge stays: %q", said)
	}
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
func resetLeavesNothing(t *testing.T, s *sitetest.Site, paths []string) {
	t.Helper()
	if err := reset.Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	for name, h := range s.Hosts {
		for _, path := range paths {
			if _, err := os.Lstat(filepath.Join(h.Root, path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s still has %s (%v)", name, path, err)
			}
		}
	}
}

// A Docker of others is found before anything of it is touched.
func TestForeignDockerIsRefused(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"a package": "/usr/bin/dockerd", "static programs": "/usr/local/bin/dockerd",
		"a configuration":  cri.DockerConfig,
		"a unit of others": "/etc/systemd/system/docker.service",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1")
			s.Options.Cluster = tasktest.Cluster(t, "cri: {type: docker}")
			h := s.Hosts["cp1"]
			h.Put(t, path, "theirs\n")
			err := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster)).Phases(t.Context(),
				[]task.Phase{{Name: "install", Tasks: plan.ContainerTasks(s.Options.Cluster)}})
			var foreign interface{ Hint() string }
			if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "("+path+")") || foreign.Hint() == "" {
				t.Errorf("got %v", err)
			}
			if h.Content(path) != "theirs\n" || h.Content("/usr/local/bin/cri-dockerd") != "" {
				t.Error("the host was changed all the same")
			}
		})
	}
}
