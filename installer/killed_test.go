//go:build linux

package installer

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// killedPhases are tasks of every kind, as far as they need no program that cannot run here: kubeadm and kubectl are
// played.
func killedPhases(c *manifest.Cluster) []task.Phase {
	return []task.Phase{
		{Name: "init", Tasks: append(kubeadm.SecurityTasks(),
			siteregistry.CertificatesTask(), machine.HostsTask(), machine.SwapTask(c), machine.KernelTask(c),
			machine.RouteTask(c))},
		{Name: "install", Tasks: []task.Task{
			cri.ContainerdTask(), kubeadm.KubeletTask(c), kubeadm.InitTask(c),
			kubeadm.JoinTask("join-worker", task.Each, manifest.RoleWorker),
		}},
	}
}

// killedSite makes hosts that are always the same, with one work directory: certificates and passwords are the same,
// too.
func killedSite(t *testing.T, workDir string) *sitetest.Site {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.WorkDir = workDir
	for _, h := range s.Hosts {
		h.Put(t, "/etc/fstab", "/dev/sda2 none swap sw 0 0\n")
		h.Answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "--values" {
				_, err := cmd.Stdout.Write([]byte("1\n1\n"))
				return err
			}
			return nil
		})
	}
	sitetest.NewFakeCluster(t, s)
	return s
}

// TestKilledAtEveryCommand kills an installation after each of its commands in turn; without KKBUNDLE_BIG=1, after
// some. The next run has to complete it, to the byte as an undisturbed one would have, and the one after that has to
// find nothing to do.
func TestKilledAtEveryCommand(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 13)
	c := tasktest.Cluster(t, "")
	b := sitetest.ClusterBundle(t, c)
	workDir := t.TempDir() + "/work"
	phases := killedPhases(c)
	undisturbed := killedSite(t, workDir)
	if err := undisturbed.Run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	commands := 0
	for name, h := range undisturbed.Hosts {
		want[name] = h.Tree(t)
		commands += len(h.Ran)
	}
	for n := 1; n <= commands; n += step {
		k := killing{b, phases, want}
		k.after(t, killedSite(t, workDir), n)
	}
}

// A killing is an installation that is killed, and what it has to come to in the end, by host.
type killing struct {
	bundle *bundle.Reader
	phases []task.Phase
	want   map[string]string
}

func (k killing) after(t *testing.T, s *sitetest.Site, n int) {
	t.Helper()
	first := s.Run(t, k.bundle)
	life := &sitetest.Lifetime{Left: n}
	for _, target := range first.Hosts {
		target.Conn = &sitetest.MortalHost{Host: target.Conn, Life: life}
	}
	if err := first.Phases(t.Context(), k.phases); err == nil {
		t.Errorf("killed after %d commands: it says that it is complete", n)
	}
	if err := s.Run(t, k.bundle).Phases(t.Context(), k.phases); err != nil {
		t.Errorf("killed after %d commands: the next run does not complete: %v", n, err)
		return
	}
	for name, h := range s.Hosts {
		if diff := cmp.Diff(h.Tree(t), k.want[name]); diff != "" {
			t.Errorf("killed after %d commands: %s (-is +as undisturbed):\n%s", n, name, diff)
		}
	}
	s.States()
	if err := s.Run(t, k.bundle).Phases(t.Context(), k.phases); err != nil {
		t.Errorf("killed after %d commands: third run: %v", n, err)
	}
	if states := s.States(); slices.ContainsFunc(states,
		func(state string) bool { return !strings.HasSuffix(state, " done") }) {
		t.Errorf("killed after %d commands: the third run finds something to do: %q", n, states)
	}
}
