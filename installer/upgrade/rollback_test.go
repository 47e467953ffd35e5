//go:build linux

package upgrade

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	releaseBefore = "v1.34.2"
	releaseAfter  = "v1.34.3"
)

// rollbackSite makes hosts that are nodes of a cluster of releaseBefore, whose control planes have manifests.
func rollbackSite(t *testing.T, names ...string) (*sitetest.Site, *fakeAPI) {
	t.Helper()
	s, f := upgradeSite(t, releaseBefore, names...)
	f.manifests = true
	for name := range f.servers {
		if err := f.serve(s.Hosts[name], releaseBefore); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		s.Hosts[name].Put(t, "/var/lib/kubelet/config.yaml", "before")
	}
	return s, f
}

// upgraded upgrades a site, and returns the upgrade's error.
func upgraded(s *sitetest.Site, t *testing.T, f *fakeAPI, b *bundle.Reader) error {
	t.Helper()
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+releaseAfter+"}")
	_, err := upgradeWith(s, t, b).walkAll(t.Context())
	for name := range f.nodes {
		s.Hosts[name].Put(t, "/var/lib/kubelet/config.yaml", "after")
	}
	return err
}

// rollbackTo prepares a rollback to a cluster. etcd's members have the release of their manifests, and data of 3.6.
func rollbackTo(s *sitetest.Site, t *testing.T, f *fakeAPI, c *manifest.Cluster, b *bundle.Reader) *rollback {
	t.Helper()
	s.Options.Cluster = c
	f.target = c.Kubernetes.Version // of a kubelet that is started
	r := s.Run(t, b)
	r.Operation, r.Rule = engine.Upgrading(), task.OtherVersion
	back := newRollback(r, Options{Options: r.Options, DrainTimeout: kube.DrainTimeout})
	back.servicesWait = servicesWait
	back.member = func(ctx context.Context, h *task.Host) (health.EtcdMetrics, error) {
		version, err := etcdRelease(ctx, h, kube.ManifestsDir+"/etcd.yaml")
		return health.EtcdMetrics{HasLeader: true, Version: version, Storage: "3.6"}, err
	}
	return back
}

// walkBack does the rollback's own work, without the tasks of an install.
func (b *rollback) walkBack(ctx context.Context) (Plan, error) {
	if err := errors.Join(b.find(ctx), b.rescue(ctx)); err != nil {
		return Plan{}, err
	}
	plan, err := b.look(ctx)
	if err != nil {
		return plan, err
	}
	if !plan.Empty() {
		if err := b.Phases(ctx, []task.Phase{{Name: "precheck", Tasks: []task.Task{b.fitTask(plan)}}}); err != nil {
			return plan, err
		}
		if err := b.back(ctx, "rollback "+plan.To, plan); err != nil {
			return plan, err
		}
	}
	return plan, b.Phases(ctx, []task.Phase{b.forgetPhase()})
}

// wantBack checks that all nodes are as they were before the upgrade.
func wantBack(t *testing.T, s *sitetest.Site, f *fakeAPI, why string) {
	t.Helper()
	for name, n := range f.nodes {
		h := s.Hosts[name]
		if n.Status.NodeInfo.KubeletVersion != releaseBefore || n.Spec.Unschedulable || len(n.Annotations) > 0 {
			t.Fatalf("%s: node %s is %+v", why, name, n)
		}
		if !strings.HasPrefix(h.Content(member.Path), "site "+releaseBefore+"\n") {
			t.Fatalf("%s: %s is recorded as %q", why, name, h.Content(member.Path))
		}
		if _, err := os.Stat(filepath.Join(h.Root, marks.CopiesDir)); err == nil {
			t.Fatalf("%s: %s still has copies", why, name)
		}
		for _, mark := range []string{string(marks.ServerUpgraded), string(marks.UpgradeBegun)} {
			if _, err := os.Stat(filepath.Join(h.Root, mark)); err == nil {
				t.Fatalf("%s: %s still has %s", why, name, mark)
			}
		}
		if f.servers[name] != "" && f.serverOf(name) != releaseBefore {
			t.Fatalf("%s: the API server of %s is %s", why, name, f.serverOf(name))
		}
	}
}

func clustersOf(t *testing.T) (before *manifest.Cluster, old, next *bundle.Reader) {
	t.Helper()
	before = tasktest.Cluster(t, "kubernetes: {version: "+releaseBefore+"}")
	return before, bundleOf(t, before), bundleOf(t, tasktest.Cluster(t, "kubernetes: {version: "+releaseAfter+"}"))
}

// All kubelets go back before the first API server, because none may be newer than an API server.
func TestRollbackOrder(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "cp2", "node1", "node2")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	f.steps()
	plan, err := rollbackTo(s, t, f, before, old).walkBack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if plan.From != releaseAfter || plan.To != releaseBefore || !plan.Back {
		t.Errorf("plan %+v", plan)
	}
	var want []string
	for _, name := range []string{"node1", "node2", "cp2", "cp1"} {
		want = append(want, "cp1: drain "+name, name+": systemctl try-restart kubelet.service", "cp1: uncordon "+name)
	}
	if diff := cmp.Diff(f.steps(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	wantBack(t, s, f, "a complete upgrade")
	for name := range f.nodes {
		if got := s.Hosts[name].Content("/var/lib/kubelet/config.yaml"); got != "before" {
			t.Errorf("the kubelet of %s has the settings of %s", name, got)
		}
	}
	plan, err = rollbackTo(s, t, f, before, old).walkBack(t.Context())
	if err != nil || !plan.Empty() || len(f.steps()) > 0 {
		t.Errorf("a rerun plans %+v, %v", plan, err)
	}
}

// A worker that joined after the upgrade has no copies: kubeadm of the release before writes its settings.
func TestRollbackOfALaterWorker(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.Hosts["node1"].Root, marks.CopiesDir)); err != nil {
		t.Fatal(err)
	}
	f.steps()
	if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps := strings.Join(f.steps(), "\n"); !strings.Contains(steps, "node1: kubeadm upgrade node") {
		t.Errorf("got\n%s", steps)
	}
	wantBack(t, s, f, "a later worker")
}

// TestRollbackToAStep: an upgrade over a release between stopped in its last step. The bundle of that upgrade leads
// back to the release between, and on again.
func TestRollbackToAStep(t *testing.T) {
	t.Parallel()
	const start, over, to = "v1.34.3", "v1.35.4", "v1.36.3"
	cluster := tasktest.Cluster(t, "kubernetes: {version: "+to+", upgradeFrom: "+start+"}")
	b := bundleOf(t, tasktest.Cluster(t, "kubernetes: {version: "+over+"}"), cluster)
	s, f := upgradeSite(t, start, "cp1", "node1")
	f.manifests = true
	for name, h := range s.Hosts {
		h.Put(t, "/var/lib/kubelet/config.yaml", "settings")
		if f.servers[name] != "" {
			if err := f.serve(h, start); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Options.Cluster = cluster
	drains := 0
	f.fail = func(_ int, line string) (bool, bool) {
		if strings.HasPrefix(line, "drain node1") {
			drains++
		}
		return drains == 2, false
	}
	if _, err := upgradeWith(s, t, b).walkAll(t.Context()); err == nil || f.serverOf("cp1") != to {
		t.Fatalf("the upgrade was to stop in its last step: %v, the API server is %s", err, f.serverOf("cp1"))
	}
	f.fail = nil
	back := rollbackTo(s, t, f, cluster, b)
	f.target = over
	if plan, err := back.walkBack(t.Context()); err != nil || plan.To != over {
		t.Fatalf("to %q: %v", plan.To, err)
	}
	for name, n := range f.nodes {
		if record := s.Hosts[name].Content(member.Path); n.Status.NodeInfo.KubeletVersion != over ||
			!strings.HasPrefix(record, "site "+over+"\n") {
			t.Errorf("%s is at %s, and recorded as %q", name, n.Status.NodeInfo.KubeletVersion, record)
		}
	}
	if f.serverOf("cp1") != over {
		t.Errorf("the API server is %s", f.serverOf("cp1"))
	}
	f.target = to
	if plan, err := upgradeWith(s, t, b).walkAll(t.Context()); err != nil || f.serverOf("cp1") != to ||
		len(plan.Steps) != 1 {
		t.Errorf("again, in %v: %v, the API server is %s", plan.Steps, err, f.serverOf("cp1"))
	}
}

// An upgrade that ended at any command (without KKBUNDLE_BIG=1, at some) is rolled back.
func TestRollbackFromEachCommand(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 15)
	before, old, next := clustersOf(t)
	whole, all := rollbackSite(t, "cp1", "cp2", "node1")
	if err := upgraded(whole, t, all, next); err != nil {
		t.Fatal(err)
	}
	for end := 0; end < 2*len(all.said); end += step {
		n, after := 1+end/2, end%2 == 1
		s, f := rollbackSite(t, "cp1", "cp2", "node1")
		f.fail = func(i int, _ string) (bool, bool) { return i == n && !after, i == n && after }
		first := upgraded(s, t, f, next)
		f.fail = nil
		if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
			t.Fatalf("the upgrade's command %d failed with %v, and then the rollback: %v", n, first, err)
		}
		wantBack(t, s, f, "the upgrade's command failed")
	}
}

// A rollback that ended at any command (without KKBUNDLE_BIG=1, at some) is continued by the next one.
func TestRollbackContinuesAfterEachCommand(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 11)
	before, old, next := clustersOf(t)
	whole, all := rollbackSite(t, "cp1", "node1")
	if err := upgraded(whole, t, all, next); err != nil {
		t.Fatal(err)
	}
	all.said = nil
	if _, err := rollbackTo(whole, t, all, before, old).walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := 0; end < 2*len(all.said); end += step {
		n, after := 1+end/2, end%2 == 1
		s, f := rollbackSite(t, "cp1", "node1")
		if err := upgraded(s, t, f, next); err != nil {
			t.Fatal(err)
		}
		f.said = nil
		f.fail = func(i int, _ string) (bool, bool) { return i == n && !after, i == n && after }
		_, first := rollbackTo(s, t, f, before, old).walkBack(t.Context())
		f.fail = nil
		if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
			t.Fatalf("command %d failed with %v, and then: %v", n, first, err)
		}
		wantBack(t, s, f, "the rollback's command failed")
	}
}

// An upgrade that was killed has left its control plane drained: while it is, pods of the worker have nowhere to go.
func TestRollbackBeginsWithCordonedNodes(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	f.steps()
	f.nodes["cp1"].Annotations[marks.UpgradingAnnotation], f.nodes["cp1"].Spec.Unschedulable = releaseAfter, true
	if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained := slices.DeleteFunc(f.steps(), func(step string) bool { return !strings.Contains(step, ": drain ") })
	if diff := cmp.Diff(drained, []string{"cp1: drain cp1", "cp1: drain node1"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	wantBack(t, s, f, "a cordoned control plane")
}

// walkBackFor is walkBack by a kkbundle that is killed after a number of commands. It returns how many were left.
func (b *rollback) walkBackFor(ctx context.Context, commands int) (left int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	life := &sitetest.Lifetime{Left: commands, End: cancel}
	for _, target := range b.Hosts {
		target.Conn = &sitetest.MortalHost{Host: target.Conn, Life: life}
	}
	_, err = b.walkBack(ctx)
	return life.Left, err
}

// A rollback that was killed after any command (without KKBUNDLE_BIG=1, after some) leaves both ways open: the next
// upgrade completes, with kubeadm where its objects or manifests were put back, and the cluster can be rolled back
// once more.
func TestUpgradeAfterAKilledRollback(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 20)
	before, old, next := clustersOf(t)
	whole, all := rollbackSite(t, "cp1", "cp2", "node1")
	if err := upgraded(whole, t, all, next); err != nil {
		t.Fatal(err)
	}
	const many = 10000
	left, err := rollbackTo(whole, t, all, before, old).walkBackFor(t.Context(), many)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < many-left; n += step {
		s, f := rollbackSite(t, "cp1", "cp2", "node1")
		if err := upgraded(s, t, f, next); err != nil {
			t.Fatal(err)
		}
		f.said = nil
		if _, err := rollbackTo(s, t, f, before, old).walkBackFor(t.Context(), n); err == nil {
			t.Fatalf("killed after %d commands: it says that it is complete", n)
		}
		undone := slices.ContainsFunc(f.said,
			func(line string) bool { return strings.Contains(line, "replace --filename") })
		f.said, f.target = nil, releaseAfter // the kubelets of the next bundle
		if err := upgraded(s, t, f, next); err != nil {
			t.Fatalf("killed after %d commands: the upgrade does not continue: %v", n, err)
		}
		if applied := strings.Contains(strings.Join(f.steps(), "\n"), "kubeadm upgrade apply"); undone && !applied {
			t.Fatalf("killed after %d commands: the objects of %s were put back, and kubeadm does not upgrade them again", n, releaseBefore)
		}
		wantForward(t, s, f, n)
		if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
			t.Fatalf("killed after %d commands, then upgraded: %v", n, err)
		}
		wantBack(t, s, f, "killed, upgraded, and rolled back")
		for name := range f.nodes {
			if got := s.Hosts[name].Content("/var/lib/kubelet/config.yaml"); got != "before" {
				t.Fatalf("killed after %d commands: in the end the kubelet of %s has the settings of %s", n, name, got)
			}
		}
	}
}

// wantForward checks that all nodes have the release after, and copies of the one before.
func wantForward(t *testing.T, s *sitetest.Site, f *fakeAPI, n int) {
	t.Helper()
	for name, node := range f.nodes {
		h := s.Hosts[name]
		if node.Status.NodeInfo.KubeletVersion != releaseAfter || node.Spec.Unschedulable || len(node.Annotations) > 0 {
			t.Fatalf("killed after %d commands: node %s is %+v", n, name, node)
		}
		if f.servers[name] != "" && f.serverOf(name) != releaseAfter {
			t.Fatalf("killed after %d commands: the API server of %s is %s", n, name, f.serverOf(name))
		}
		if !strings.HasPrefix(h.Content(member.Path), "site "+releaseAfter+"\n") {
			t.Fatalf("killed after %d commands: %s is recorded as %q", n, name, h.Content(member.Path))
		}
		if kept := h.Content(marks.CopiesDir + "/" + releaseBefore + member.Path); !strings.HasPrefix(kept, "site "+
			releaseBefore+"\n") {
			t.Fatalf("killed after %d commands: the way back of %s is gone: %q", n, name, kept)
		}
		for _, mark := range []string{string(marks.ServerUpgraded), string(marks.UpgradeBegun)} {
			if _, err := os.Stat(filepath.Join(h.Root, mark)); err == nil {
				t.Fatalf("killed after %d commands: %s still has %s", n, name, mark)
			}
		}
	}
}

// A worker that is left as it is must not be newer than the API servers after a rollback; an older one is no reason
// to go back.
func TestRollbackWithoutAWorker(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	for name, c := range map[string]struct {
		left bool // also by the upgrade
		want string
	}{
		"upgraded": {false, "the kubelet of node2 is " + releaseAfter +
			", and would be newer than every API server"},
		"not upgraded": {true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := rollbackSite(t, "cp1", "node1", "node2")
			s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+releaseAfter+"}")
			u := upgradeWith(s, t, next)
			if c.left {
				leave(u.Run, "node2")
			}
			if _, err := u.walkAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.steps()
			var plan Plan
			var err error
			for range 2 { // the second run finds the first one's
				b := rollbackTo(s, t, f, before, old)
				leave(b.Run, "node2")
				if plan, err = b.walkBack(t.Context()); err != nil {
					break
				}
			}
			steps := f.steps()
			refused, isRefused := errors.AsType[*NoWayBackError](err)
			switch {
			case c.want == "" && (err != nil || !plan.Empty()):
				t.Errorf("a rerun plans %+v, %v", plan, err)
			case c.want == "":
				wantBack(t, s, f, "without node2")
			case !isRefused || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(refused.Hint(), "nodes delete --unreachable node2") || len(steps) > 0:
				t.Errorf("got %v after %q", err, steps)
			}
		})
	}
}

// A rollback needs all control planes, and needs no connection to hosts that are left as they are.
func TestRollbackWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "cp2", "cp3")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	b := rollbackTo(s, t, f, before, old)
	leave(b.Run, "cp2")
	if err := b.work(t.Context()); !errors.As(err, new(*begin.WithoutError)) {
		t.Errorf("got %v", err)
	}
}

// The copies are removed from the other hosts.
func TestForgetRollbackWithout(t *testing.T) {
	t.Parallel()
	_, _, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1", "node2")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	s.Options.Without = []string{"node2"}
	s.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
	s.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) { return s.Hosts[h.Name], nil }
	if _, err := ForgetRollback(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"cp1": false, "node1": false, "node2": true} {
		_, err := os.Stat(filepath.Join(s.Hosts[name].Root, marks.CopiesDir))
		if (err == nil) != want {
			t.Errorf("copies of %s: %v", name, err)
		}
	}
}

// The quota of etcd may have grown since the upgrade, and the database with it: the member keeps the larger quota.
func TestRollbackKeepsEtcdQuota(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	const four, eight = "    - --quota-backend-bytes=4294967296\n", "    - --quota-backend-bytes=8589934592\n"
	for _, c := range []struct{ was, is, want string }{
		{"", eight, eight}, {four, eight, eight}, {eight, four, eight}, {eight, "", eight}, {"", "", ""},
	} {
		s, f := rollbackSite(t, "cp1")
		const file = kube.ManifestsDir + "/etcd.yaml"
		s.Hosts["cp1"].Put(t, file, "    - etcd\n"+c.was+"    image: registry.k8s.io/etcd:3.6.2-0\n")
		if err := upgraded(s, t, f, next); err != nil {
			t.Fatal(err)
		}
		s.Hosts["cp1"].Put(t, file, "    - etcd\n"+c.is+"    image: registry.k8s.io/etcd:3.6.3-0\n")
		if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantBack(t, s, f, "another quota")
		if got, want := s.Hosts["cp1"].Content(file), "    - etcd\n"+c.want+
			"    image: registry.k8s.io/etcd:3.6.2-0\n"; got != want {
			t.Errorf("from %q, now %q: the manifest is\n%s", c.was, c.is, got)
		}
	}
}

// Copies of an upgrade that has changed no control plane yet are made anew: it may have stopped weeks ago. Later they
// stay.
func TestUpgradeKeepsAnewUntilItChanges(t *testing.T) {
	t.Parallel()
	_, _, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "cp2")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+releaseAfter+"}")
	u := upgradeWith(s, t, next)
	for _, cp := range u.controlPlanes() { // the run ends here
		if err := u.TaskOn(t.Context(), "upgrade", keepTask(u.Cluster), cp); err != nil {
			t.Fatal(err)
		}
	}
	const file, since = kube.ManifestsDir + "/etcd.yaml", "# changed since\n"
	s.Hosts["cp1"].Put(t, file, s.Hosts["cp1"].Content(file)+since)
	f.fail = func(_ int, line string) (bool, bool) { return strings.HasPrefix(line, "kubeadm upgrade node"), false }
	if err := upgraded(s, t, f, next); err == nil {
		t.Fatal("the upgrade of cp2 did not fail")
	}
	dir := marks.CopiesDir + "/" + releaseBefore
	if got := s.Hosts["cp1"].Content(dir + file); !strings.HasSuffix(got, since) {
		t.Errorf("the copy is of the first run:\n%s", got)
	}
	f.fail = nil
	f.objects["configmap coredns"] = `{"kind":"ConfigMap","data":{"of":"the release after"}}`
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cp1", "cp2"} {
		if got := s.Hosts[name].Content(marks.CopiesOf(releaseBefore).Objects()); got == "" ||
			strings.Contains(got, "the release after") {
			t.Errorf("the objects of %s are\n%s", name, got)
		}
	}
	if got := s.Hosts["cp1"].Content(dir + file); !strings.HasPrefix(got, "version: "+releaseBefore+"\n") {
		t.Errorf("the copy of cp1 is of the new manifest:\n%s", got)
	}
}

// A run that was killed after its last node leaves the record of an upgrade under way. The next one finds nothing to
// do and ends it, so that a later upgrade or rollback to the same release saves etcd anew.
func TestCompleteUpgradeIsNotUnderWay(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	after := s.Options.Cluster
	run := func(what string, dry, want bool, work func() (*engine.Run, func(context.Context) error)) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.Options.DryRun = dry
		s.Options.Progress = func(e task.Event) {
			if e.Phase == "prepare" { // the tasks of an install are not played here
				cancel()
			}
		}
		r, do := work()
		if err := r.Dir.Write(marks.SavedNow, []byte(r.Cluster.Kubernetes.Version+" upgrade/x\n")); err != nil {
			t.Fatal(err)
		}
		err := do(ctx)
		if ctx.Err() == nil && !dry {
			t.Errorf("%s: did not begin to prepare: %v", what, err)
		}
		if _, err := r.Dir.Read(marks.SavedNow); (err == nil) != want {
			t.Errorf("%s: %s: %v", what, marks.SavedNow, err)
		}
		if err := r.Dir.Close(); err != nil {
			t.Error(err)
		}
	}
	upgrade := func() (*engine.Run, func(context.Context) error) {
		s.Options.Cluster = after
		u := upgradeWith(s, t, next)
		return u.Run, u.work
	}
	run("a dry run", true, true, upgrade)
	run("an upgrade", false, false, upgrade)
	if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	run("a rollback", false, false, func() (*engine.Run, func(context.Context) error) {
		b := rollbackTo(s, t, f, before, old)
		return b.Run, b.work
	})
}

func TestRollbackRefuses(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	for name, c := range map[string]struct {
		cluster string // of the rollback's bundle; "" is the one before
		change  func(s *sitetest.Site, f *fakeAPI, b *rollback)
		want    string
	}{
		"another release": {cluster: "kubernetes: {version: v1.34.1}", want: "lead back to " + releaseBefore},
		"other settings": {
			cluster: "kubernetes: {version: " + releaseBefore + ", maxPods: 99}",
			want:    "had other settings than the bundle: kubernetes.maxPods",
		},
		"no copies": {change: func(s *sitetest.Site, _ *fakeAPI, _ *rollback) {
			_ = os.RemoveAll(filepath.Join(s.Hosts["cp1"].Root, marks.CopiesDir))
		}, want: "cp1 runs " + releaseAfter + " and has no copies of " + releaseBefore},
		"a minor release of etcd": {change: func(s *sitetest.Site, f *fakeAPI, b *rollback) {
			s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/etcd.yaml", "    image: registry.k8s.io/etcd:3.7.0-0\n")
			b.member = func(context.Context, *task.Host) (health.EtcdMetrics, error) {
				return health.EtcdMetrics{Version: "3.7.0", Storage: "3.7"}, nil
			}
		}, want: "the data of etcd on cp1 have moved on to 3.7"},
		"a minor release of etcd, over a step with the settings of the upgrade": {
			cluster: "kubernetes: {version: " + releaseBefore + ", maxPods: 99}",
			change: func(s *sitetest.Site, _ *fakeAPI, b *rollback) {
				s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/etcd.yaml", "    image: registry.k8s.io/etcd:3.7.0-0\n")
				b.member = func(context.Context, *task.Host) (health.EtcdMetrics, error) {
					return health.EtcdMetrics{Version: "3.7.0", Storage: "3.7"}, nil
				}
			},
			want: "the data of etcd on cp1 have moved on to 3.7",
		},
		"objects of a new type": {change: func(_ *sitetest.Site, f *fakeAPI, _ *rollback) {
			f.objects["types"] = "workloads.scheduling.k8s.io\n"
			f.objects["workloads.scheduling.k8s.io"] = "a b"
		}, want: "does not know 2 of workloads.scheduling.k8s.io"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := rollbackSite(t, "cp1", "node1")
			if err := upgraded(s, t, f, next); err != nil {
				t.Fatal(err)
			}
			cluster := before
			if c.cluster != "" {
				cluster = tasktest.Cluster(t, c.cluster)
			}
			b := rollbackTo(s, t, f, cluster, old)
			if c.change != nil {
				c.change(s, f, b)
			}
			f.said = nil
			_, err := b.walkBack(t.Context())
			var refused *NoWayBackError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if steps := f.steps(); len(steps) > 0 {
				t.Errorf("a refused rollback did %q", steps)
			}
		})
	}
}

// TestRollbackRefusesToStopHalfWay names what would stop a drain or the copy of etcd, before any node is changed.
func TestRollbackRefusesToStopHalfWay(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	f.objects["poddisruptionbudgets"] = `{"items":[{"metadata":{"name":"all","namespace":"shop"},"status":{"expectedPods":2,"desiredHealthy":2}}]}`
	f.pods(append(staticPods(s.Options.Inventory), "alone")...)
	s.Hosts["cp1"].Answer("du", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "9999999\t/var/lib/etcd\n")
		return err
	})
	s.Hosts["cp1"].Mkdir(t, "/var/lib/etcd")
	s.Hosts["cp1"].Answer("df", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "Avail Mounted on\n4096 /\n")
		return err
	})
	f.said = nil
	_, err := rollbackTo(s, t, f, before, old).walkBack(t.Context())
	if unfit, ok := errors.AsType[*UnfitError](err); !ok || !unfit.Back {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PodDisruptionBudget shop/all",
		"cp1 has 0 MiB free on /, and up to 9 MiB are written there",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if steps := f.steps(); len(steps) > 0 {
		t.Errorf("a refused rollback did %q", steps)
	}
	b := rollbackTo(s, t, f, before, old)
	b.Force = true
	if _, err := b.walkBack(t.Context()); err != nil {
		t.Errorf("with --force: %v", err)
	}
	wantBack(t, s, f, "with --force")
}

// The tasks of external etcd would put an older program on newer data.
func TestRollbackRefusesAnotherExternalEtcd(t *testing.T) {
	t.Parallel()
	before, old, _ := clustersOf(t)
	s, f := rollbackSite(t, "cp1")
	s.Options.Inventory.Groups.Etcd = []string{"cp1"}
	b := rollbackTo(s, t, f, before, old)
	b.Cluster.Etcd.Type = manifest.EtcdExternal
	for version, want := range map[string]string{
		"3.6.6": "",
		"3.7.0": "etcd on cp1 is 3.7.0, and the bundle has 3.6.5",
	} {
		s.Hosts["cp1"].Stub(t, "etcd", "echo 'etcd Version: "+version+"'; echo 'Git SHA: 1'")
		err := b.externalAllows(t.Context())
		var refused *NoWayBackError
		if want == "" && err != nil || want != "" && (!errors.As(err, &refused) ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("etcd %s: got %v", version, err)
		}
	}
}

// A control plane whose new API server does not start gets the manifests of the release before.
func TestRollbackOfADeadControlPlane(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "kubeadm upgrade apply") }
	if err := upgraded(s, t, f, next); err == nil {
		t.Fatal("the upgrade did not fail")
	}
	f.fail, f.dead = nil, releaseAfter
	b := rollbackTo(s, t, f, before, old)
	b.patience = 1
	if _, err := b.walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantBack(t, s, f, "a dead control plane")
}

// What a finished upgrade leaves: the way back without programs, and none of kubeadm's own copies. status names it.
func TestUpgradeLeavesOneWayBack(t *testing.T) {
	t.Parallel()
	_, _, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	f.fail = func(_ int, line string) (bool, bool) { return strings.HasPrefix(line, "drain node1"), false }
	if err := upgraded(s, t, f, next); err == nil {
		t.Fatal("the upgrade did not fail")
	}
	left := "/etc/kubernetes/tmp/kubeadm-backup-etcd-2026/etcd/member/snap/db"
	s.Hosts["cp1"].Put(t, left, "a copy of etcd")
	const settings = "/etc/kubernetes/tmp/kubeadm-kubelet-env3881459916"
	s.Hosts["node1"].Put(t, settings, "a copy of the kubelet's settings")
	tidy := func(r *engine.Run) {
		if err := r.Phases(t.Context(), []task.Phase{{Name: "finish", Tasks: []task.Task{tidyTask()}}}); err != nil {
			t.Fatal(err)
		}
	}
	kept := marks.CopiesDir + "/" + releaseBefore
	tidy(s.Run(t, nil))
	if s.Hosts["node1"].Content(kept+"/usr/local/bin/kubelet") == "" {
		t.Error("the programs of an unfinished node are gone")
	}
	f.fail = nil
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	r := s.Run(t, nil)
	tidy(r)
	if s.Hosts["cp1"].Content(kept+kube.ManifestsDir+"/etcd.yaml") == "" {
		t.Error("cp1 has no manifest of etcd to go back to")
	}
	for _, name := range []string{"cp1", "node1"} {
		for _, file := range []string{"/usr/local/bin/kubelet", kube.ClusterCA} {
			if _, err := os.Stat(filepath.Join(s.Hosts[name].Root, kept, file)); err == nil {
				t.Errorf("%s still has a copy of %s", name, file)
			}
		}
		if s.Hosts[name].Content(kept+member.Path) == "" {
			t.Errorf("%s has no way back", name)
		}
	}
	if s.Hosts["cp1"].Content(left) != "" || s.Hosts["node1"].Content(settings) != "" {
		t.Error("kubeadm's copies are left")
	}
	for _, h := range r.Hosts {
		if way, err := health.WayBack(t.Context(), h); err != nil || way == nil || way.Release != releaseBefore ||
			way.Bytes == 0 {
			t.Errorf("the way back of %s: %+v, %v", h.Name, way, err)
		}
	}
	if len(r.Hosts) != 2 {
		t.Errorf("%d hosts", len(r.Hosts))
	}
	// Settings that change without the version are kept anew: the copies of the upgrade before are not theirs.
	if _, there, err := marks.FindCopies(t.Context(), r.Hosts[0]); err != nil || !there {
		t.Errorf("copies of cp1: %v, %v", there, err)
	}
}

// Each upgrade keeps what it replaces, also if only settings change and the release stays.
func TestUpgradeOfSettingsKeepsAnew(t *testing.T) {
	t.Parallel()
	s, f := rollbackSite(t, "cp1")
	for _, step := range []struct{ settings, before string }{{"120", "before"}, {"130", "of 120 pods"}} {
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+releaseBefore+", maxPods: "+step.settings+"}")
		if _, err := upgradeWith(s, t, bundleOf(t, s.Options.Cluster)).walkAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.Hosts["cp1"].Content(marks.CopiesDir + "/" + releaseBefore +
			"/var/lib/kubelet/config.yaml"); got != step.before {
			t.Errorf("with %s pods, the kept settings are those %s", step.settings, got)
		}
		s.Hosts["cp1"].Put(t, "/var/lib/kubelet/config.yaml", "of "+step.settings+" pods")
	}
	if steps := f.steps(); len(steps) == 0 {
		t.Error("nothing was upgraded")
	}
}

// The API server of a single control plane restarts soon after its new kubelet: the upgrade asks again.
func TestUpgradeWaitsForARestartingAPIServer(t *testing.T) {
	t.Parallel()
	_, _, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	lost := false
	f.fail = func(_ int, line string) (bool, bool) {
		first := !lost && strings.HasPrefix(line, "uncordon cp1")
		lost = lost || first
		return first, false
	}
	if err := upgraded(s, t, f, next); err != nil || !lost {
		t.Errorf("lost %v: %v", lost, err)
	}
	u := upgradeWith(s, t, next)
	u.settle = time.Millisecond
	var asked []string
	if err := u.settled(t.Context(), u.Hosts[0], func(context.Context, *task.Host) error {
		asked = append(asked, "x")
		if len(asked) == 2 {
			return errors.New("the API server restarts")
		}
		return nil
	}); err != nil || len(asked) != 4 {
		t.Errorf("asked %d times: %v", len(asked), err)
	}
}

// An API server that has just started refuses requests until it knows the rights: a killed rollback goes on when it
// answers.
func TestRollbackWaitsForAStartingAPIServer(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	refused := false
	f.fail = func(_ int, line string) (bool, bool) {
		first := !refused && strings.HasPrefix(line, "api-resources")
		refused = refused || first
		return first, false
	}
	if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil || !refused {
		t.Errorf("refused %v: %v", refused, err)
	}
	wantBack(t, s, f, "an API server that has just started")
}

// TestRollbackWaitsForItsPods: the API knows the pods of the later release for a while, and they are ready.
func TestRollbackWaitsForItsPods(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	b := rollbackTo(s, t, f, before, old)
	if _, err := b.walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	const image = "registry.k8s.io/kube-controller-manager:"
	s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/kube-controller-manager.yaml",
		"spec:\n  containers:\n  - command: [x]\n    image: \""+image+releaseBefore+"\"\n")
	known := f.objects["pods --namespace=kube-system"]
	for version, want := range map[string]string{
		releaseBefore: "",
		releaseAfter: "the API still knows pod kube-controller-manager-cp1 with " + image + releaseAfter + ", not " +
			image + releaseBefore,
	} {
		f.objects["pods --namespace=kube-system"] = strings.Replace(known,
			`"kube-controller-manager-cp1","namespace":"kube-system"}`,
			`"kube-controller-manager-cp1","namespace":"kube-system"},"spec":{"containers":[{"image":"`+image+version+
				`"}]}`, 1)
		err := b.planeIsBack(t.Context(), b.Hosts[0])
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("pods of %s: %v", version, err)
		}
	}
}

// TestRollbackAgainWaitsForItsAPIServers: an API server that has just started, or is busy, misses a question of the
// next run, which finds nothing to roll back.
func TestRollbackAgainWaitsForItsAPIServers(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	b := rollbackTo(s, t, f, before, old)
	if _, err := b.walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.silent = map[string]int{"cp1": 2}
	if back, err := b.isBack(t.Context(), b.Hosts[0]); !back || err != nil {
		t.Errorf("an API server that misses two questions: back %t, %v", back, err)
	}
}

// TestControlPlaneIsBackWithItsPods asserts that a control plane of which the API knows no pod of etcd is not taken
// for back: after a restart, the kubelet reports its static pods one by one.
func TestControlPlaneIsBackWithItsPods(t *testing.T) {
	t.Parallel()
	_, _, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	u := upgradeWith(s, t, next)
	if err := u.kubeletIsBack(t.Context(), u.Hosts[0]); err != nil {
		t.Errorf("with all pods: %v", err)
	}
	f.pods("kube-apiserver-cp1", "kube-controller-manager-cp1", "kube-scheduler-cp1")
	if err := u.kubeletIsBack(t.Context(), u.Hosts[0]); err == nil || !strings.Contains(err.Error(), "etcd-cp1") {
		t.Errorf("without a pod of etcd: %v", err)
	}
}
