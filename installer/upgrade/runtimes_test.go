//go:build linux

package upgrade

import (
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// An upgrade keeps the files of the cluster's runtime, and a failure collects its logs.
func TestRuntimeIsKeptAndAsked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, logs []string }{
		"containerd": {
			[]string{cri.ContainerdConfigFile, "/etc/systemd/system/containerd.service"},
			[]string{"kubelet", "containerd"},
		},
		"docker": {[]string{
			cri.DockerConfig, "/etc/systemd/system/docker.service",
			"/etc/systemd/system/cri-docker.service",
		}, []string{"kubelet", "docker", "cri-docker"}},
		"crio": {[]string{cri.CRIOConfigFile, "/etc/systemd/system/crio.service"}, []string{"kubelet", "crio"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1")
			s.Options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			target, h := s.Run(t, nil).Hosts[0], s.Hosts["cp1"]
			for _, file := range c.files {
				h.Put(t, file, "before "+file)
			}
			if err := keepTask(s.Options.Cluster).Do(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			kept := h.Tree(t)
			for _, file := range c.files {
				if !strings.Contains(kept, marks.CopiesDir+file+" ") {
					t.Errorf("%s is not kept:\n%s", file, kept)
				}
			}
			h.Said("")
			failed := diagnose.Explain(t.Context(), target, time.Now(),
				&host.ExitError{Host: "cp1", Args: []string{"kubeadm"}, Code: 1})
			if failed == nil {
				t.Fatal("the failure is gone")
			}
			asked := strings.Join(h.Said("journalctl"), "\n")
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
