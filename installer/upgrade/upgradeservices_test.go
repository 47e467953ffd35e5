//go:build linux

package upgrade

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// proofs returns what was done from the first proof of Services on: proofs, who reached them, and drains. Hosts that
// connect at the same time are sorted.
func (f *fakeAPI) proofs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list, connected []string
	for _, line := range f.said {
		name, command, _ := strings.Cut(line, ": ")
		word, rest, _ := strings.Cut(command, " ")
		switch {
		case word == "connect":
			connected = append(connected, name)
			continue
		case word == "drain":
			node, _, _ := strings.Cut(rest, " ")
			word += " " + node
		case word == "create":
		case word == "delete" && strings.Contains(rest, "services"):
		default:
			continue
		}
		slices.Sort(connected)
		list, connected = append(append(list, connected...), word), nil
	}
	return append(list, connected...)
}

// Before each drain, every ready node has followed the API: it reaches a Service that did not exist before. Nodes of
// a batch share the proof. Nodes that are not ready, or in the middle of an upgrade, are not asked.
func TestUpgradeDrainsWhenServicesFollow(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2", "node3", "node4")
	ready := &f.nodes["node3"].Status.Conditions[0]
	ready.Status = corev1.ConditionFalse
	f.nodes["node4"].Annotations[marks.UpgradingAnnotation] = "v1.34.3" // by a run that was killed
	f.behind["node2"], f.behind["node3"], f.behind["node4"], f.unled = 2, 1<<20, 1<<20, 1
	f.fail = func(_ int, line string) (bool, bool) {
		switch {
		case strings.HasPrefix(line, "drain node3"):
			ready.Status = corev1.ConditionTrue
		case strings.HasPrefix(line, "drain node4"):
			f.behind["node4"] = 0
		}
		return false, false
	}
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Batch = Batch{count: 2}
	if _, err := u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := f.proofs()
	// at the same time
	if i := slices.Index(got, "drain node2"); i >= 0 && i+1 < len(got) && got[i+1] == "drain node1" {
		got[i], got[i+1] = got[i+1], got[i]
	}
	want := []string{
		"create", "cp1", "node1", "node2", "node2", "node2", "delete", "drain node4",
		"create", "cp1", "node1", "node2", "node4", "delete", "drain cp1",
		"create", "cp1", "node1", "node2", "node4", "delete", "drain node1", "drain node2",
		"create", "cp1", "node1", "node2", "node4", "delete", "drain node3",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// A rollback waits as an upgrade does.
func TestRollbackDrainsWhenServicesFollow(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	f.said, f.behind["node1"] = nil, 1
	if _, err := rollbackTo(s, t, f, before, old).walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create", "cp1", "node1", "node1", "delete", "drain node1", "create", "cp1", "node1", "delete",
		"drain cp1",
	}
	if diff := cmp.Diff(f.proofs(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// Where a node does not follow, nothing is drained. --force drains with a warning, and so does a rollback, which may
// be the remedy.
func TestUpgradeStopsWhereServicesDoNotFollow(t *testing.T) {
	t.Parallel()
	const patience = 2 * time.Second // which passes for each drain
	for name, spoil := range map[string]func(f *fakeAPI){
		"a node without rules":             func(f *fakeAPI) { f.behind["node1"] = 1 << 20 },
		"a controller manager that sleeps": func(f *fakeAPI) { f.unled = 1 << 20 },
	} {
		s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
		spoil(f)
		u := upgradeTo(s, t, "v1.34.3")
		u.servicesWait = patience
		_, err := u.walkAll(t.Context())
		var (
			stopped *StoppedError
			failed  *engine.TaskError
		)
		if !errors.As(err, &stopped) || !errors.As(err, &failed) || failed.Task != "services" ||
			!strings.Contains(err.Error(), "--force") {
			t.Fatalf("%s: got %v", name, err)
		}
		if got := f.proofs(); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "drain") }) ||
			!slices.Contains(got, "delete") {
			t.Errorf("%s: %q", name, got)
		}
		f.said = nil
		u = upgradeTo(s, t, "v1.34.3")
		u.servicesWait, u.Force = patience, true
		if _, err := u.walkAll(t.Context()); err != nil {
			t.Fatalf("%s, with --force: %v", name, err)
		}
		if drains, warned := countDrains(f.proofs()), warnings(s, "services"); drains != 2 || warned != 2 {
			t.Errorf("%s, with --force: %d drains, %d warnings", name, drains, warned)
		}
	}
}

func TestRollbackGoesOnWhereServicesDoNotFollow(t *testing.T) {
	t.Parallel()
	before, old, next := clustersOf(t)
	s, f := rollbackSite(t, "cp1", "node1")
	if err := upgraded(s, t, f, next); err != nil {
		t.Fatal(err)
	}
	f.said, f.behind["node1"] = nil, 1<<20
	b := rollbackTo(s, t, f, before, old)
	b.servicesWait = 2 * time.Second
	if _, err := b.walkBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if drains, warned := countDrains(f.proofs()), warnings(s, "services"); drains != 2 || warned != 2 {
		t.Errorf("%d drains, %d warnings", drains, warned)
	}
	wantBack(t, s, f, "with a node whose Services are old")
}

func countDrains(steps []string) int {
	n := 0
	for _, step := range steps {
		if strings.HasPrefix(step, "drain ") {
			n++
		}
	}
	return n
}

// warnings counts the warnings of a task.
func warnings(s *sitetest.Site, name string) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	n := 0
	for _, e := range s.Events {
		if e.Task == name && e.State == task.Warned {
			n++
		}
	}
	return n
}

// A single node is not drained, and no Service is made.
func TestUpgradeOfASingleNodeMakesNoService(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1")
	if _, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.proofs(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}
