//go:build linux

package installer

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A lifetime is how many commands kkbundle lives for: with the last one's answer it is gone (kill -9), and nothing more
// reaches any host.
type lifetime struct {
	mu   sync.Mutex
	left int
	// end, if set, ends the context of the killed run, which would wait for answers.
	end func()
}

var errKilled = errors.New("kkbundle was killed")

// spend reports whether a command is left, and whether it is the last.
func (l *lifetime) spend() (alive, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left--
	return l.left >= 0, l.left == 0
}

// A mortalHost is a host as a kkbundle sees it that will be killed.
type mortalHost struct {
	host.Host
	life *lifetime
}

func (h *mortalHost) Run(ctx context.Context, cmd host.Cmd) error {
	alive, last := h.life.spend()
	var err error
	if alive {
		err = h.Host.Run(ctx, cmd)
	}
	if alive && !last {
		return err
	}
	if h.life.end != nil {
		h.life.end()
	}
	return errKilled // after the last command, too: the host has done it, and nobody knows
}

// killedPhases are tasks of every kind, as far as they need no program that cannot run here: kubeadm and kubectl are played.
func killedPhases(c *manifest.Cluster) []task.Phase {
	return []task.Phase{
		{Name: "init", Tasks: append(kubeadm.SecurityTasks(),
			siteregistry.CertificatesTask(), machine.HostsTask(), machine.SwapTask(c), machine.KernelTask(c), machine.RouteTask(c))},
		{Name: "install", Tasks: []task.Task{
			cri.ContainerdTask(), kubeadm.KubeletTask(c), kubeadm.InitTask(c), kubeadm.JoinTask("join-worker", task.Each, manifest.RoleWorker),
		}},
	}
}

// killedSite makes hosts that are always the same, with one work directory: certificates and passwords are the same, too.
func killedSite(t *testing.T, workDir string) *site {
	t.Helper()
	s := newSite(t, "cp1", "node1")
	s.options.WorkDir = workDir
	for _, h := range s.hosts {
		h.put(t, "/etc/fstab", "/dev/sda2 none swap sw 0 0\n")
		h.answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "--values" {
				_, err := cmd.Stdout.Write([]byte("1\n1\n"))
				return err
			}
			return nil
		})
	}
	newFakeCluster(t, s)
	return s
}

// oneOf is how far apart the commands are after which a run is killed: each has its turn with KKBUNDLE_BIG=1, one of n without. With -short,
// the test is skipped.
func oneOf(t *testing.T, n int) int {
	t.Helper()
	switch {
	case os.Getenv("KKBUNDLE_BIG") == "1":
		return 1
	case testing.Short():
		t.Skip("kills a run again and again")
	}
	return n
}

// TestKilledAtEveryCommand kills an installation after each of its commands in turn; without KKBUNDLE_BIG=1, after some. The
// next run has to complete it, to the byte as an undisturbed one would have, and the one after that has to find nothing to do.
func TestKilledAtEveryCommand(t *testing.T) {
	t.Parallel()
	step := oneOf(t, 13)
	c := tasktest.Cluster(t, "")
	b := clusterBundle(t, c)
	workDir := t.TempDir() + "/work"
	phases := killedPhases(c)
	undisturbed := killedSite(t, workDir)
	if err := undisturbed.run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	commands := 0
	for name, h := range undisturbed.hosts {
		want[name] = h.tree(t)
		commands += len(h.ran)
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

func (k killing) after(t *testing.T, s *site, n int) {
	t.Helper()
	first := s.run(t, k.bundle)
	life := &lifetime{left: n}
	for _, target := range first.Hosts {
		target.Conn = &mortalHost{Host: target.Conn, life: life}
	}
	if err := first.Phases(t.Context(), k.phases); err == nil {
		t.Errorf("killed after %d commands: it says that it is complete", n)
	}
	if err := s.run(t, k.bundle).Phases(t.Context(), k.phases); err != nil {
		t.Errorf("killed after %d commands: the next run does not complete: %v", n, err)
		return
	}
	for name, h := range s.hosts {
		if diff := cmp.Diff(h.tree(t), k.want[name]); diff != "" {
			t.Errorf("killed after %d commands: %s (-is +as undisturbed):\n%s", n, name, diff)
		}
	}
	s.states()
	if err := s.run(t, k.bundle).Phases(t.Context(), k.phases); err != nil {
		t.Errorf("killed after %d commands: third run: %v", n, err)
	}
	if states := s.states(); slices.ContainsFunc(states, func(state string) bool { return !strings.HasSuffix(state, " done") }) {
		t.Errorf("killed after %d commands: the third run finds something to do: %q", n, states)
	}
}
