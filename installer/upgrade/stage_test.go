//go:build linux

package upgrade

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A fakeContainerd keeps names of images, and what it pulled.
type fakeContainerd struct {
	mu     sync.Mutex
	pulled []string
}

func (f *fakeContainerd) run(_ context.Context, cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := strings.Join(cmd.Args, " ")
	switch {
	case strings.Contains(line, "images list"):
		for _, name := range f.pulled {
			if _, err := io.WriteString(cmd.Stdout, name+" type sha256:"+strings.Repeat("0", 64)+" -\n"); err != nil {
				return err
			}
		}
	case strings.Contains(line, "plugins ls"):
		_, err := io.WriteString(cmd.Stdout, "io.containerd.grpc.v1   cri   linux/amd64   ok\n")
		return err
	case strings.Contains(line, "images pull"):
		f.pulled = append(f.pulled, cmd.Args[len(cmd.Args)-1])
	}
	return nil
}

// stageNodes does what Stage does beside the registry, which these hosts do not have.
func (u *upgrade) stageNodes(ctx context.Context) error {
	p, err := u.look(ctx)
	if err != nil {
		return err
	}
	return u.eachStep(p, func(tasks []task.Task) error {
		tasks = slices.DeleteFunc(slices.Clone(tasks), func(t task.Task) bool { return !t.Independent })
		return u.phase(ctx, task.Phase{Name: stagePhase, Tasks: tasks})
	})
}

// happened returns the number of tasks that changed something, and of bytes that were sent, and forgets both.
func happened(s *sitetest.Site) (changed int, sent int64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, e := range s.Events {
		if e.State == task.Changed {
			changed++
		}
		if e.State == task.Progress {
			sent += e.Bytes
		}
	}
	s.Events = nil
	return changed, sent
}

// A stage puts nothing into its place and touches no node; another one has nothing to do; the upgrade sends nothing.
func TestStage(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
	runtimes := map[string]*fakeContainerd{}
	for name, h := range s.Hosts {
		runtimes[name] = &fakeContainerd{}
		h.Answer("ctr", runtimes[name].run)
		h.Put(t, "/etc/containerd/certs.d/registry.k8s.io/hosts.toml", "of the site")
	}
	f.said = nil
	u := upgradeTo(s, t, "v1.34.3")
	p, err := u.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lacks, err := u.lacking(t.Context(), p); err != nil || !slices.Contains(lacks["node1"], "kubelet") ||
		!slices.Contains(lacks["node1"], "pull-images") {
		t.Errorf("before: %v, %v", lacks, err)
	}
	if err := u.stageNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if changed, sent := happened(s); changed == 0 || sent == 0 {
		t.Errorf("%d tasks changed something, %d bytes were sent", changed, sent)
	}
	if got := s.Hosts["node1"].Content("/usr/local/bin/kubelet"); got != "old kubelet" {
		t.Errorf("the kubelet in use is %q", got)
	}
	for _, line := range f.said {
		if !strings.Contains(line, "endpoint status") {
			t.Errorf("a stage did %s", line)
		}
	}
	has := func(name, image string) bool {
		return slices.ContainsFunc(runtimes[name].pulled, func(ref string) bool { return strings.Contains(ref, image) })
	}
	if !has("cp1", "kube-apiserver:v1.34.3") || !has("node1", "kube-proxy:v1.34.3") || has("node1", "kube-apiserver") {
		t.Errorf("cp1 pulled %q, node1 %q", runtimes["cp1"].pulled, runtimes["node1"].pulled)
	}

	u = upgradeTo(s, t, "v1.34.3")
	if err := u.stageNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if changed, sent := happened(s); changed > 0 || sent > 0 {
		t.Errorf("another stage: %d tasks changed something, %d bytes were sent", changed, sent)
	}
	if lacks, err := u.lacking(t.Context(), p); err != nil || len(lacks) > 0 {
		t.Errorf("staged: %v, %v", lacks, err)
	}

	u = upgradeTo(s, t, "v1.34.3")
	if _, err := u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, sent := happened(s); sent > 0 {
		t.Errorf("the upgrade sent %d bytes", sent)
	}
	if got := s.Hosts["node1"].Content("/usr/local/bin/kubelet"); got == "old kubelet" || got == "" {
		t.Errorf("the kubelet after the upgrade is %q", got)
	}
	if !slices.Contains(f.steps(), "node1: systemctl try-restart kubelet.service") {
		t.Error("the upgrade restarted no kubelet of node1")
	}
}
