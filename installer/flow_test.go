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

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// failing is a task that fails on some hosts and is done on none.
func failing(name string, where task.Where, hosts ...string) task.Task {
	return task.Task{Name: name, Where: where, Do: func(_ context.Context, t *task.Host) error {
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
	with := func(task task.Task, change func(*task.Task)) task.Task { change(&task); return task }
	for name, c := range map[string]struct {
		tasks []task.Task
		want  []string
	}{
		"a worker is left, the others go on": {
			[]task.Task{failing("a", task.Each, "node1"), failing("init", task.First), failing("join", task.Each)},
			[]string{
				"a@cp1 done", "a@node1 failed", "a@node2 done", "init@cp1 done", "join@cp1 done",
				"join@node2 done",
			},
		},
		"what runs once waits for its host": {
			[]task.Task{
				failing("a", task.Each, "cp1"), failing("b", task.Each),
				with(failing("init", task.First), func(t *task.Task) { t.Roles = control }),
				failing("join", task.Each),
			},
			[]string{"a@cp1 failed", "a@node1 done", "a@node2 done", "b@node1 done", "b@node2 done", "init@ skipped"},
		},
		"after what ran once has failed comes nothing": {
			[]task.Task{failing("init", task.First, "cp1"), failing("join", task.Each)},
			[]string{"init@cp1 failed"},
		},
		"one by one, the others are held up": {
			[]task.Task{failing("join", task.OneByOne, "node1"), failing("b", task.Each)},
			[]string{"b@cp1 done", "join@cp1 done", "join@node1 failed", "join@node2 skipped"},
		},
		"what is for all or none ends the run": {
			[]task.Task{
				with(failing("pre", task.Each, "node2"), func(t *task.Task) { t.AllOrNone = true }),
				failing("b", task.Each),
			},
			[]string{"pre@cp1 done", "pre@node1 done", "pre@node2 failed"},
		},
		"and is not begun where a host has failed": {
			[]task.Task{failing("a", task.Each, "node2"), with(failing("post", task.Each),
				func(t *task.Task) { t.AllOrNone = true })},
			[]string{"a@cp1 done", "a@node1 done", "a@node2 failed", "post@ skipped"},
		},
		"nobody is left": {
			[]task.Task{
				failing("a", task.Each, "cp1", "node1", "node2"),
				{Name: "here", Where: task.Here, Do: func(context.Context, *task.Host) error { return nil }},
			},
			[]string{"a@cp1 failed", "a@node1 failed", "a@node2 failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1", "node2")
			err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: c.tasks}})
			var failed *engine.TaskError
			if !errors.As(err, &failed) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(s.States(), sitetest.Sorted(c.want)); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

// TestApart has a host that is slow, which the others do not wait for until a task comes that is for all of them.
func TestApart(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	var others sync.WaitGroup
	others.Add(2)
	step := func(name string, do func(t *task.Host) error) task.Task {
		return task.Task{Name: name, Independent: true, Do: func(_ context.Context,
			t *task.Host,
		) error {
			return do(t)
		}}
	}
	slow := step("a", func(t *task.Host) error {
		if t.Name == "node1" {
			others.Wait() // for what they do in the task after this one
			return errors.New("broken")
		}
		return nil
	})
	quick := step("b", func(*task.Host) error { others.Done(); return nil })
	err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "one", Tasks: []task.Task{slow, quick, failing("c", task.Each)}}})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v", err)
	}
	want := []string{
		"a@cp1 done", "a@node1 failed", "a@node2 done", "b@cp1 done", "b@node2 done", "c@cp1 done",
		"c@node2 done",
	}
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// TestExternalEtcdFailed has nothing begin that needs an etcd that is not there.
func TestExternalEtcdFailed(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, nil)
	r.Cluster.Etcd.Type = "external"
	r.Hosts[1].Roles = append(slices.Clone(r.Hosts[1].Roles), manifest.RoleEtcd)
	err := r.Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{
		failing("etcd", task.Each, "node1"),
		{
			Name: "init", Where: task.First, Roles: []manifest.Role{manifest.RoleControlPlane},
			Do: func(context.Context, *task.Host) error { return errors.New("it began") },
		},
	}}})
	if err == nil || err.Error() != "node1: one etcd: broken" {
		t.Errorf("got %v", err)
	}
	events := s.Events
	if last := events[len(events)-2]; last.State != task.Skipped || !strings.Contains(last.Message, "node1 failed") {
		t.Errorf("the reason is not told: %+v", last)
	}
}

// TestDryRunSaysWhy looks at what dry runs say of hosts that are not as they shall be.
func TestDryRunSaysWhy(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.DryRun = true
	h := s.Hosts["cp1"]
	active := true
	h.Answer("systemctl", func(context.Context, host.Cmd) error {
		if !active {
			return &host.ExitError{Code: 3}
		}
		return nil
	})
	step := task.Settle(task.Task{Name: "demo"}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{
				{Path: "/etc/one.conf", Mode: 0o600, Data: []byte("1\n")},
				{Path: "/etc/two.conf", Mode: 0o600, Data: []byte("2\n")},
			},
			Units: []string{"demo.service"},
		}, nil
	})
	why := func(step task.Task) string {
		t.Helper()
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{step}}}); err != nil {
			t.Fatal(err)
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		for _, e := range s.Events {
			if e.State == task.Would {
				s.Events = nil
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
	is(why(step), "/etc/one.conf is missing; /etc/two.conf is missing; not applied yet")
	h.Put(t, "/etc/one.conf", "1\n")
	h.Put(t, "/etc/two.conf", "3\n")
	h.Put(t, task.StampDir+"/demo", "old\n")
	is(why(step), "/etc/two.conf is different; its configuration has changed")
	s.Options.DryRun = false
	if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{step}}}); err != nil {
		t.Fatal(err)
	}
	s.Options.DryRun, s.Events, active = true, nil, false
	is(why(step), "demo.service does not run")
	is(why(machine.HostsTask()), `/etc/hosts lacks "10.0.0.3 cp1"`)
	is(why(kubeadm.InitTask(s.Options.Cluster)), "cp1 is no node yet")
}
