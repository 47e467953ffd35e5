//go:build linux

package installer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// failing is a task that fails on some hosts and is done on none.
func failing(name string, where Where, hosts ...string) Task {
	return Task{Name: name, Where: where, Do: func(_ context.Context, t *Target) error {
		if slices.Contains(hosts, t.Name) {
			return errors.New("broken")
		}
		return nil
	}}
}

// TestFailureStopsItsDependents has a host fail, and looks at which tasks of which hosts still run.
func TestFailureStopsItsDependents(t *testing.T) {
	t.Parallel()
	control := []manifest.Role{manifest.RoleControlPlane}
	with := func(task Task, change func(*Task)) Task { change(&task); return task }
	for name, c := range map[string]struct {
		tasks []Task
		want  []string
	}{
		"a worker is left, the others go on": {
			[]Task{failing("a", Each, "node1"), failing("init", First), failing("join", Each)},
			[]string{"a@cp1 done", "a@node1 failed", "a@node2 done", "init@cp1 done", "join@cp1 done", "join@node2 done"},
		},
		"what runs once waits for its host": {
			[]Task{failing("a", Each, "cp1"), failing("b", Each), with(failing("init", First), func(t *Task) { t.Roles = control }), failing("join", Each)},
			[]string{"a@cp1 failed", "a@node1 done", "a@node2 done", "b@node1 done", "b@node2 done", "init@ skipped"},
		},
		"after what ran once has failed comes nothing": {
			[]Task{failing("init", First, "cp1"), failing("join", Each)},
			[]string{"init@cp1 failed"},
		},
		"one by one, the others are held up": {
			[]Task{failing("join", OneByOne, "node1"), failing("b", Each)},
			[]string{"b@cp1 done", "join@cp1 done", "join@node1 failed", "join@node2 skipped"},
		},
		"what is for all or none ends the run": {
			[]Task{with(failing("pre", Each, "node2"), func(t *Task) { t.Together = true }), failing("b", Each)},
			[]string{"pre@cp1 done", "pre@node1 done", "pre@node2 failed"},
		},
		"and is not begun where a host has failed": {
			[]Task{failing("a", Each, "node2"), with(failing("post", Each), func(t *Task) { t.Together = true })},
			[]string{"a@cp1 done", "a@node1 done", "a@node2 failed", "post@ skipped"},
		},
		"nobody is left": {
			[]Task{failing("a", Each, "cp1", "node1", "node2"), {Name: "here", Where: Here, Do: func(context.Context, *Target) error { return nil }}},
			[]string{"a@cp1 failed", "a@node1 failed", "a@node2 failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1", "node1", "node2")
			err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "one", Tasks: c.tasks}})
			var failed *TaskError
			if !errors.As(err, &failed) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(s.states(), sorted(c.want)); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

// TestApart has a host that is slow, which the others do not wait for until a task comes that is for all of them.
func TestApart(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2")
	var others sync.WaitGroup
	others.Add(2)
	step := func(name string, do func(t *Target) error) Task {
		return Task{Name: name, Apart: true, Do: func(_ context.Context, t *Target) error { return do(t) }}
	}
	slow := step("a", func(t *Target) error {
		if t.Name == "node1" {
			others.Wait() // for what they do in the task after this one
			return errors.New("broken")
		}
		return nil
	})
	quick := step("b", func(*Target) error { others.Done(); return nil })
	err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "one", Tasks: []Task{slow, quick, failing("c", Each)}}})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v", err)
	}
	want := []string{"a@cp1 done", "a@node1 failed", "a@node2 done", "b@cp1 done", "b@node2 done", "c@cp1 done", "c@node2 done"}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// TestExternalEtcdFailed has nothing begin that needs an etcd that is not there.
func TestExternalEtcdFailed(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	r := s.run(t, nil)
	r.cluster.Etcd.Type = "external"
	r.targets[1].Roles = append(slices.Clone(r.targets[1].Roles), manifest.RoleEtcd)
	err := r.phases(t.Context(), []Phase{{Name: "one", Tasks: []Task{
		failing("etcd", Each, "node1"),
		{Name: "init", Where: First, Roles: []manifest.Role{manifest.RoleControlPlane}, Do: func(context.Context, *Target) error { return errors.New("it began") }},
	}}})
	if err == nil || err.Error() != "node1: one etcd: broken" {
		t.Errorf("got %v", err)
	}
	events := s.events
	if last := events[len(events)-2]; last.State != Skipped || !strings.Contains(last.Message, "waits for node1") {
		t.Errorf("the reason is not told: %+v", last)
	}
}

// TestDryRunSaysWhy looks at what dry runs say of hosts that are not as they shall be.
func TestDryRunSaysWhy(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.options.DryRun = true
	h := s.hosts["cp1"]
	active := true
	h.answer("systemctl", func(context.Context, host.Cmd) error {
		if !active {
			return &host.ExitError{Code: 3}
		}
		return nil
	})
	task := settle(Task{Name: "demo"}, func(context.Context, *Target) (setting, error) {
		return setting{
			files: []textFile{{"/etc/one.conf", 0o600, []byte("1\n")}, {"/etc/two.conf", 0o600, []byte("2\n")}},
			units: []string{"demo.service"},
		}, nil
	})
	why := func(task Task) string {
		t.Helper()
		if err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "one", Tasks: []Task{task}}}); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.events {
			if e.State == Would {
				s.events = nil
				return e.Message
			}
		}
		t.Fatal("nothing would be done")
		return ""
	}
	is := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	is(why(task), "/etc/one.conf is missing; /etc/two.conf is missing; it was not applied yet")
	h.put(t, "/etc/one.conf", "1\n")
	h.put(t, "/etc/two.conf", "3\n")
	h.put(t, stampDir+"/demo", "old\n")
	is(why(task), "/etc/two.conf is different; what it is made from has changed")
	s.options.DryRun = false
	if err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "one", Tasks: []Task{task}}}); err != nil {
		t.Fatal(err)
	}
	s.options.DryRun, s.events, active = true, nil, false
	is(why(task), "demo.service does not run")
	is(why(hostsTask()), `/etc/hosts lacks "10.0.0.3 cp1"`)
	is(why(initTask(s.options.Cluster)), "cp1 is no node yet")
}

func TestReasonsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, why := withReasons(t.Context())
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { because(ctx, "one") })
	}
	all.Wait()
	for _, text := range []string{"two", "three", "four", "five"} {
		because(ctx, "%s", text)
	}
	if got, want := why.String(), "one; two; three; and 2 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
