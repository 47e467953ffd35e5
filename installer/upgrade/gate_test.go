//go:build linux

package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// visited are the steps of workers that are upgraded one after the other.
func visited(names ...string) []string {
	var list []string
	for _, name := range names {
		list = append(list, "cp1: drain "+name)
		if !strings.HasPrefix(name, "cp") {
			list = append(list, name+": kubeadm upgrade node")
		}
		list = append(list, name+": systemctl try-restart kubelet.service", "cp1: uncordon "+name)
	}
	return list
}

// wantPaused checks the error of an upgrade that ended between nodes, and what it did.
//
//nolint:revive // six arguments: what there is, and what is wanted
func wantPaused(t *testing.T, err error, f *fakeAPI, reason string, left, steps []string) {
	t.Helper()
	var paused *PausedError
	if !errors.As(err, &paused) || !strings.Contains(paused.Reason, reason) || paused.Hint() == "" {
		t.Fatalf("got %v, want %s", err, reason)
	}
	if diff := cmp.Diff(paused.Left, left); diff != "" {
		t.Errorf("left (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(f.steps(), steps); diff != "" {
		t.Errorf("steps (-got +want):\n%s", diff)
	}
	for name, n := range f.nodes {
		if n.Spec.Unschedulable || len(n.Annotations) > 0 {
			t.Errorf("%s is left in the middle", name)
		}
	}
}

// wantRest goes on without flags.
func wantRest(t *testing.T, s *sitetest.Site, f *fakeAPI, steps []string, versions ...string) {
	t.Helper()
	if _, err := upgradeTo(s, t, versions...).walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.steps(), steps); diff != "" {
		t.Errorf("the rest (-got +want):\n%s", diff)
	}
}

// A worker that is the canary comes after the control planes and before all others, which the next run upgrades.
func TestCanaryWorker(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2", "node3")
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Canary = "node2"
	_, err := u.walkAll(t.Context())
	wantPaused(t, err, f, "node2 has taken the step v1.34.3", []string{"node1", "node3"},
		append([]string{"cp1: kubeadm upgrade apply v1.34.3 --yes"}, visited("cp1", "node2")...))
	u = upgradeTo(s, t, "v1.34.3")
	u.how.Canary = "node2"
	var refused *RefusedError
	if _, err := u.walkAll(t.Context()); !errors.As(err, &refused) || len(f.steps()) > 0 {
		t.Errorf("again: %v", err)
	}
	wantRest(t, s, f, visited("node1", "node3"), "v1.34.3")
}

// A canary whose run ended before it was back is still the one that the others wait for.
func TestCanaryInterrupted(t *testing.T) {
	t.Parallel()
	for _, checked := range []bool{false, true} {
		s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
		var told []string
		run := func() error {
			u := upgradeTo(s, t, "v1.34.3")
			u.how.Canary = "node2"
			if checked {
				u.how.Check = func(_ context.Context, nodes []string) error {
					told = append(told, nodes...)
					return nil
				}
			}
			_, err := u.walkAll(t.Context())
			return err
		}
		ctx, kill := context.WithCancel(t.Context())
		f.fail = func(_ int, line string) (bool, bool) {
			if line == "uncordon node2" {
				kill()
				return true, false
			}
			return false, false
		}
		u := upgradeTo(s, t, "v1.34.3")
		u.how.Canary = "node2"
		if _, err := u.walkAll(ctx); err == nil {
			t.Fatal("the uncordon did not fail")
		}
		f.fail = nil
		f.steps()
		err := run()
		if !checked {
			wantPaused(t, err, f, "node2 has taken the step v1.34.3", []string{"node1"}, []string{"cp1: uncordon node2"})
			continue
		}
		if err != nil || !slices.Equal(told, []string{"node2", "node1"}) {
			t.Errorf("checked %q, %v", told, err)
		}
	}
}

// A canary whose check failed is checked again by the same command.
func TestCanaryCheckedAgain(t *testing.T) {
	t.Parallel()
	for _, canary := range []string{"cp1", "node2"} {
		s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
		var told []string
		run := func(broken string) error {
			told = nil
			u := upgradeTo(s, t, "v1.34.3")
			u.how.Canary = canary
			u.how.Check = func(_ context.Context, nodes []string) error {
				told = append(told, nodes...)
				if nodes[0] == broken {
					return errors.New("the shop is down")
				}
				return nil
			}
			_, err := u.walkAll(t.Context())
			return err
		}
		for range 2 {
			if err := run(canary); err == nil || len(told) == 0 || told[len(told)-1] != canary {
				t.Fatalf("%s: checked %q, %v", canary, told, err)
			}
		}
		f.steps()
		if err := run(""); err != nil || len(told) == 0 || told[0] != canary || told[len(told)-1] == canary {
			t.Errorf("%s: checked %q, %v", canary, told, err)
		}
		for name, n := range f.nodes {
			if n.Status.NodeInfo.KubeletVersion != "v1.34.3" {
				t.Errorf("%s has %s", name, n.Status.NodeInfo.KubeletVersion)
			}
		}
	}
}

// With a control plane as the canary, the API servers of the others wait, and with them all kubelets.
func TestCanaryControlPlane(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "cp2", "node1")
	for _, steps := range [][]string{{"cp1: kubeadm upgrade apply v1.34.3 --yes"}, nil} { // the second run is there
		u := upgradeTo(s, t, "v1.34.3")
		u.how.Canary = "cp1"
		_, err := u.walkAll(t.Context())
		wantPaused(t, err, f, "cp1 has taken the step v1.34.3", []string{"cp1", "cp2", "node1"}, steps)
	}
	wantRest(t, s, f, append([]string{"cp2: kubeadm upgrade node"}, visited("cp1", "cp2", "node1")...), "v1.34.3")
}

// A single control plane that is the canary is completed: its kubelet has nobody to wait for.
func TestCanaryOnlyControlPlane(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Canary = "cp1"
	_, err := u.walkAll(t.Context())
	wantPaused(t, err, f, "cp1 has taken the step v1.34.3", []string{"node1"},
		append([]string{"cp1: kubeadm upgrade apply v1.34.3 --yes"}, visited("cp1")...))
	wantRest(t, s, f, visited("node1"), "v1.34.3")
}

// With several steps, each run ends after the canary has taken one more.
func TestCanaryOverSteps(t *testing.T) {
	t.Parallel()
	for _, canary := range []string{"cp1", "node2"} {
		s, f := upgradeSite(t, "v1.34.3", "cp1", "node1", "node2")
		plan, err := upgradeTo(s, t, "v1.36.3").look(t.Context())
		if err != nil || len(plan.Steps) != 2 {
			t.Fatalf("%+v, %v", plan, err)
		}
		way := plan.Steps
		step := func(version string) []string {
			steps := append([]string{"cp1: kubeadm upgrade apply " + version + " --yes"}, visited("cp1")...)
			if canary != "cp1" {
				steps = append(steps, visited(canary)...)
			}
			return steps
		}
		run := func() error {
			u := upgradeTo(s, t, way...)
			u.how.Canary = canary
			_, err := u.walkAll(t.Context())
			return err
		}
		others := slices.DeleteFunc([]string{"node1", "node2"}, func(n string) bool { return n == canary })
		err = run()
		wantPaused(t, err, f, canary+" has taken the step "+way[0], []string{"cp1", "node1", "node2"}, step(way[0]))
		if !strings.Contains(err.(*PausedError).Advice, "again with it") { //nolint:errorlint,forcetypeassert // wantPaused
			t.Errorf("the advice is %s", err.(*PausedError).Advice) //nolint:errorlint,forcetypeassert // wantPaused
		}
		wantPaused(t, run(), f, canary+" has taken the step "+way[1], others, step(way[1]))
		wantRest(t, s, f, visited(others...), way...)
	}
}

// A step that has nothing for the canary, such as one that changes etcd alone, does not end the run.
func TestCanaryHasTheStep(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.36.3", "cp1", "node1", "node2")
	runsEtcd(t, s.Hosts["cp1"], "3.6.8") // for ever, so that the step comes again
	steps := []string{"v1.36.3", "v1.37.2"}
	f.fail = func(_ int, line string) (bool, bool) { return strings.Contains(line, "v1.37.2"), false }
	if _, err := upgradeTo(s, t, steps...).walkAll(t.Context()); err == nil {
		t.Fatal("the second step did not fail")
	}
	f.fail = nil
	f.steps()
	u := upgradeTo(s, t, steps...)
	u.how.Canary = "node2"
	_, err := u.walkAll(t.Context())
	wantPaused(t, err, f, "node2 has taken the step v1.37.2", []string{"node1"}, slices.Concat(
		[]string{"cp1: kubeadm upgrade apply v1.37.2 --yes"}, visited("cp1", "node2")))
}

func TestCanaryRefused(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"cp2": "kubeadm upgrades a cluster from one control plane, and that is cp1", "node9": "no host \"node9\"",
		"node1": "it is no node that this run upgrades",
	} {
		s, f := upgradeSite(t, "v1.34.2", "cp1", "cp2", "node1")
		u := upgradeTo(s, t, "v1.34.3")
		u.how.Canary = name
		leave(u.Run, "node1")
		if _, err := u.walkAll(t.Context()); err == nil || !strings.Contains(err.Error(), want) || len(f.steps()) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With a check, the run goes on after the canary as long as the check passes; it is told each batch.
func TestCheckAfterEachBatch(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2", "node3", "node4")
	for name, zone := range map[string]string{"node1": "a", "node2": "b", "node3": "a", "node4": "a"} {
		f.nodes[name].Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	var told []string
	run := func(broken string) error {
		told = nil
		u := upgradeTo(s, t, "v1.34.3")
		u.how.Canary, u.how.Batch = "node2", Batch{count: 2}
		if broken == "" {
			u.how.Canary = ""
		}
		u.how.Check = func(_ context.Context, nodes []string) error {
			told = append(told, strings.Join(nodes, " "))
			if nodes[0] == broken {
				return errors.New("the shop is down")
			}
			return nil
		}
		_, err := u.walkAll(t.Context())
		return err
	}
	err := run("node1")
	var stopped *StoppedError
	var failed *engine.TaskError
	if !errors.As(err, &stopped) || !errors.As(err, &failed) || failed.Task != "check" ||
		!strings.Contains(err.Error(), "the shop is down") {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(told, []string{"cp1", "node2", "node1 node3"}); diff != "" {
		t.Errorf("checked (-got +want):\n%s", diff)
	}
	if n := f.nodes["node4"].Status.NodeInfo.KubeletVersion; n != "v1.34.2" {
		t.Errorf("node4 has %s after a check that failed", n)
	}
	f.steps()
	if err := run(""); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told, []string{"node4"}); diff != "" {
		t.Errorf("checked (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(f.steps(), visited("node4")); diff != "" {
		t.Errorf("the rest (-got +want):\n%s", diff)
	}
}

// Workers that are not selected, by name or by label, are left to another run.
func TestNodes(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct {
		first, left []string
		err         string
	}{
		"zone=b":           {[]string{"node2"}, []string{"node1", "node3"}, ""},
		"node3, node1":     {[]string{"node1", "node3"}, []string{"node2"}, ""},
		"zone in (a,b,c)":  {[]string{"node1", "node2", "node3"}, nil, ""},
		"cp1":              {nil, nil, "cp1 is a control plane"},
		"zone=c":           {nil, nil, "selects no worker"},
		"node1,node7":      {nil, nil, "selects no worker"},
		"zone=b,!disabled": {[]string{"node2"}, []string{"node1", "node3"}, ""},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2", "node3")
			for name, zone := range map[string]string{"cp1": "c", "node1": "a", "node2": "b", "node3": "a"} {
				f.nodes[name].Labels = map[string]string{"zone": zone}
			}
			u := upgradeTo(s, t, "v1.34.3")
			var err error
			if u.how.Nodes, err = ParseSelection(text); err != nil {
				t.Fatal(err)
			}
			_, err = u.walkAll(t.Context())
			all := append([]string{"cp1: kubeadm upgrade apply v1.34.3 --yes"},
				visited(append([]string{"cp1"}, c.first...)...)...)
			switch {
			case c.err != "":
				var refused *RefusedError
				if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.err) || len(f.steps()) > 0 {
					t.Errorf("got %v, want %s", err, c.err)
				}
				return
			case len(c.left) == 0:
				if err != nil || !slices.Equal(f.steps(), all) {
					t.Errorf("got %v", err)
				}
				return
			}
			wantPaused(t, err, f, "the nodes of --nodes are upgraded", c.left, all)
			wantRest(t, s, f, visited(c.left...), "v1.34.3")
		})
	}
	for _, text := range []string{"a==b==c", "zone in", "=", "a b"} {
		if _, err := ParseSelection(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// Selected workers go all steps. The others then go to the last release directly.
func TestNodesOverSteps(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1", "node1", "node2")
	plan, err := upgradeTo(s, t, "v1.36.3").look(t.Context())
	if err != nil || len(plan.Steps) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	u := upgradeTo(s, t, plan.Steps...)
	if u.how.Nodes, err = ParseSelection("node2"); err != nil {
		t.Fatal(err)
	}
	_, err = u.walkAll(t.Context())
	var steps []string
	for _, version := range plan.Steps {
		steps = append(append(steps, "cp1: kubeadm upgrade apply "+version+" --yes"), visited("cp1", "node2")...)
	}
	wantPaused(t, err, f, "--nodes", []string{"node1"}, steps)
	wantRest(t, s, f, visited("node1"), plan.Steps...)
}

// aClock passes ten minutes for each drain.
func aClock(f *fakeAPI, u *upgrade) {
	var passed atomic.Int64
	f.fail = func(_ int, line string) (bool, bool) {
		if strings.HasPrefix(line, "drain ") {
			passed.Add(int64(10 * time.Minute))
		}
		return false, false
	}
	begin := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	u.Now = func() time.Time { return begin.Add(time.Duration(passed.Load())) }
	u.gate.began = begin
}

// lastReport puts the report of an upgrade into the work directory.
func lastReport(t *testing.T, u *upgrade, plane, worker time.Duration) {
	t.Helper()
	var data bytes.Buffer
	if err := (report.Run{Version: 1, Tasks: []report.Task{
		{Phase: "upgrade v1.34.2", Host: "cp1", Task: "control-plane", State: "changed", Duration: plain.Duration(plane)},
		{Phase: "upgrade v1.34.2", Host: "cp1", Task: "kubelet", State: "changed"},
		{Phase: "upgrade v1.34.2", Host: "node1", Task: "kubelet", State: "changed", Duration: plain.Duration(worker)},
	}}).WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	if err := u.Dir.Write(marks.UpgradeReport, data.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// A window begins no node that it is too short for, by the last upgrade and by this one, and the next one goes on.
func TestWindow(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	apply := []string{"cp1: kubeadm upgrade apply v1.34.3 --yes"}
	for name, c := range map[string]struct {
		window        time.Duration
		plane, worker time.Duration // of the last upgrade, 0 if unknown
		fits          []string
		visits, left  []string
		reason        string // of a refusal if nothing is visited
	}{
		"by the last upgrade": {
			35 * minute, 10 * minute, 10 * minute,
			[]string{"cp1", "node1", "node2"},
			[]string{"cp1", "node1", "node2"},
			[]string{"node3"},
			"ends in 5m0s, and the next nodes (node3) take about 10m0s",
		},
		"slower than the last one": {
			35 * minute, 8 * minute, 3 * minute,
			[]string{"cp1", "node1", "node2", "node3"},
			[]string{"cp1", "node1", "node2"},
			[]string{"node3"},
			"take about 10m0s",
		},
		"faster than the last one": {
			45 * minute, 12 * minute, 15 * minute,
			[]string{"cp1", "node1", "node2"},
			[]string{"cp1", "node1", "node2", "node3"},
			nil, "",
		},
		"nothing known": {
			25 * minute, 0, 0, nil,
			[]string{"cp1", "node1"},
			[]string{"node2", "node3"},
			"ends in 5m0s",
		},
		"over": {
			10 * minute, 10 * minute, 1,
			[]string{"cp1", "node1", "node2", "node3"},
			[]string{"cp1"},
			[]string{"node1", "node2", "node3"},
			"the window of 10m0s is over",
		},
		"too short": {
			9 * minute, 10 * minute, minute, nil, nil, nil,
			"the window of 9m0s is too short for the first nodes (cp1): they take about 10m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2", "node3")
			u := upgradeTo(s, t, "v1.34.3")
			u.how.Window = c.window
			if c.plane > 0 {
				lastReport(t, u, c.plane, c.worker)
			}
			aClock(f, u)
			plan, err := u.walkAll(t.Context())
			if len(c.visits) == 0 {
				var refused *RefusedError
				if !errors.As(err, &refused) || refused.Reason != c.reason || len(f.steps()) > 0 {
					t.Errorf("got %v, want %s", err, c.reason)
				}
				return
			}
			var fits []string
			for _, fit := range plan.Fits {
				fits = append(fits, fit.Nodes...)
			}
			if c.worker > 1 && !slices.Equal(fits, c.fits) {
				t.Errorf("the plan has time for %q, want %q", fits, c.fits)
			}
			steps := append(slices.Clone(apply), visited(c.visits...)...)
			if len(c.left) == 0 {
				if diff := cmp.Diff(f.steps(), steps); diff != "" || err != nil {
					t.Errorf("%v (-got +want):\n%s", err, diff)
				}
				return
			}
			wantPaused(t, err, f, c.reason, c.left, steps)
			wantRest(t, s, f, visited(c.left...), "v1.34.3")
		})
	}
}

// The control planes of a step begin only if there is time for all of them, and are then completed.
func TestWindowOfControlPlanes(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1", "cp2", "node1")
	plan, err := upgradeTo(s, t, "v1.36.3").look(t.Context())
	if err != nil || len(plan.Steps) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	way := plan.Steps
	u := upgradeTo(s, t, way...)
	u.how.Window = 45 * time.Minute
	lastReport(t, u, 10*time.Minute, 10*time.Minute)
	aClock(f, u)
	plan, err = u.walkAll(t.Context())
	if diff := cmp.Diff(plan.Fits, []Fit{{way[0], []string{"cp1", "cp2", "node1"}}, {Version: way[1]}}); diff != "" {
		t.Errorf("fits (-got +want):\n%s", diff)
	}
	first := []string{"cp1: kubeadm upgrade apply " + way[0] + " --yes", "cp2: kubeadm upgrade node"}
	wantPaused(t, err, f, "the next nodes (cp1, cp2) take about 20m0s", []string{"cp1", "cp2", "node1"},
		append(first, visited("cp1", "cp2", "node1")...))
	second := []string{"cp1: kubeadm upgrade apply " + way[1] + " --yes", "cp2: kubeadm upgrade node"}
	wantRest(t, s, f, append(second, visited("cp1", "cp2", "node1")...), way...)
}

// A paused upgrade leaves its times to the next window where it knows more than the report that is there, and a complete
// one unless it knows less.
func TestUpgradeLeavesItsTimes(t *testing.T) {
	t.Parallel()
	const plane, worker = "cp1", "node1"
	for _, c := range []struct {
		had    bool // the report of a complete upgrade
		nodes  []string
		paused bool
		kept   bool
	}{
		{false, nil, true, false},
		{false, []string{worker}, true, true},
		{true, []string{plane, worker}, true, false},
		{true, []string{plane, worker}, false, true},
		{true, []string{worker}, false, false},
	} {
		s, _ := upgradeSite(t, "v1.34.2", "cp1", "node1")
		u := upgradeTo(s, t, "v1.34.3")
		if c.had {
			lastReport(t, u, time.Minute, 2*time.Minute)
		}
		u.Began, u.worked = u.Now(), true
		for _, name := range c.nodes {
			for _, one := range []string{"control-plane", "kubelet"} {
				if name == worker && one == "control-plane" {
					continue
				}
				e := task.Event{Phase: "upgrade v1.34.3", Task: one, Host: name, State: task.Started}
				u.Tell(e)
				e.State, e.Duration = task.Changed, plain.Duration(time.Hour)
				u.Tell(e)
			}
		}
		var cause error
		if c.paused {
			cause = fmt.Errorf("wrapped: %w", &PausedError{})
		}
		if err := u.keepReport(t.Context(), cause); err != nil {
			t.Fatal(err)
		}
		last, _ := u.Dir.Read(marks.UpgradeReport)
		if kept := len(last) > 0 && !strings.Contains(string(last), "upgrade v1.34.2"); kept != c.kept {
			t.Errorf("%+v: kept %t", c, kept)
		}
		data, err := u.Dir.Read(engine.ReportJSONFile)
		if want := `"outcome": "` + string(report.Paused) + `"`; err != nil || strings.Contains(string(data), want) != c.paused {
			t.Errorf("%+v: the report is %.200s, %v", c, data, err)
		}
	}
}

// What an earlier run left in the middle is completed, whatever the window; a canary that ends the run before names it.
func TestWindowCompletesWhatHasBegun(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "drain node1") }
	if _, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context()); err == nil {
		t.Fatal("the drain did not fail")
	}
	f.steps()
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Window = 5 * time.Minute
	lastReport(t, u, 10*time.Minute, 10*time.Minute)
	aClock(f, u)
	_, err := u.walkAll(t.Context())
	wantPaused(t, err, f, "the window of 5m0s is over", []string{"node2"}, visited("node1"))
}

// A canary that ends the run before nodes that an earlier run left in the middle names them.
func TestCanaryNamesWhatIsInTheMiddle(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "cp2", "node1")
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "drain cp1") }
	if _, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context()); err == nil {
		t.Fatal("the drain did not fail")
	}
	f.fail = nil
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Canary = "cp1"
	_, err := u.walkAll(t.Context())
	var paused *PausedError
	if !errors.As(err, &paused) || !slices.Equal(paused.Middle, []string{"cp1"}) ||
		!strings.Contains(err.Error(), "unschedulable: cp1") {
		t.Errorf("got %v", err)
	}
}

// An upgrade over more steps than kubelets may be behind ends, also if each run upgrades few workers: the others get
// their turn before the control planes go on.
func TestStepsForWorkersThatStayBehind(t *testing.T) {
	t.Parallel()
	nodes := func(kubelet string) []Node {
		return []Node{
			{Name: "cp1", ControlPlane: true, APIServer: "v1.36.3", Kubelet: "v1.36.3", Recorded: "v1.36.3"},
			{Name: "node1", Kubelet: kubelet, Recorded: kubelet},
		}
	}
	later := nodes("v1.33.6")
	later[1].Later = true
	for _, c := range []struct {
		nodes []Node
		to    string
		start string
	}{
		{nodes("v1.33.6"), "v1.37.2", "v1.35.0"},
		{nodes("v1.34.3"), "v1.37.2", "v1.36.3"},
		{nodes("v1.32.4"), "v1.37.2", "v1.36.3"}, // it is refused
		{nodes("v1.33.6"), "v1.36.4", "v1.36.3"},
		{later, "v1.37.2", "v1.36.3"},
	} {
		p := Plan{To: c.to, Nodes: c.nodes}
		if got := p.start(); got != c.start {
			t.Errorf("%s with a kubelet of %s starts at %s, want %s", c.to, c.nodes[1].Kubelet, got, c.start)
		}
	}
}
