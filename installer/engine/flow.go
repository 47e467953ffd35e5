package engine

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Phases runs phases in order. A host on which a task fails gets no further tasks; the other hosts continue. The run
// ends early if a task that runs once for the cluster fails or needs a failed host. The error joins those of all
// hosts.
func (r *Run) Phases(ctx context.Context, phases []task.Phase) error {
	var errs []error
	for _, p := range phases {
		begin, failures := r.Now(), len(errs)
		r.Tell(task.Event{Phase: p.Name, State: task.Started})
		goesOn := true
		for group := range groups(p.Tasks) {
			var failed []error
			if goesOn, failed = r.Group(ctx, p.Name, group); len(failed) > 0 {
				errs = append(errs, failed...)
			}
			if !goesOn {
				break
			}
		}
		state := task.Done
		if !goesOn || len(errs) > failures {
			state = task.Failed
		}
		r.Tell(task.Event{Phase: p.Name, State: state, Duration: plain.Duration(r.Now().Sub(begin))})
		if !goesOn {
			break
		}
	}
	failed := make([]*task.Host, len(errs))
	for i, err := range errs {
		if e, ok := errors.AsType[*TaskError](err); ok {
			failed[i] = r.HostNamed(e.Host)
		}
	}
	err := task.JoinHosts(failed, errs)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// groups divides a phase's tasks: each row of independent tasks is a group, and so is every other task.
func groups(tasks []task.Task) iter.Seq[[]task.Task] {
	return func(yield func([]task.Task) bool) {
		for len(tasks) > 0 {
			n := slices.IndexFunc(tasks, func(t task.Task) bool { return !t.Independent })
			switch n {
			case -1:
				n = len(tasks)
			case 0:
				n = 1
			}
			if !yield(tasks[:n]) {
				return
			}
			tasks = tasks[n:]
		}
	}
}

// Group runs a group of tasks on its hosts. goesOn reports whether the run continues.
func (r *Run) Group(ctx context.Context, phase string, group []task.Task) (goesOn bool, errs []error) {
	step := group[0] // the only one, unless the tasks are independent
	if waits := r.waitsFor(step); waits != "" {
		r.Tell(task.Event{Phase: phase, Task: step.Name, State: task.Skipped, Message: "not started: " + waits +
			" failed"})
		return false, nil
	}
	targets, onHost := r.tasksOf(group)
	found := make([]error, len(targets))
	if step.Where == task.OneByOne {
		r.oneByOne(targets, found, func(t *task.Host) error { return r.TaskOn(ctx, phase, step, t) })
	} else {
		_ = r.OnAll(targets, func(i int, t *task.Host) error {
			for _, one := range onHost[t] {
				if found[i] = r.TaskOn(ctx, phase, one, t); found[i] != nil {
					break
				}
			}
			return nil // the loop below handles errors
		})
	}
	for i, t := range targets {
		if found[i] == nil {
			continue
		}
		t.Failed = true
		if held, ok := errors.AsType[*heldError](found[i]); ok {
			r.Tell(task.Event{Phase: phase, Task: step.Name, Host: t.Name, State: task.Skipped, Message: held.Error()})
			continue
		}
		errs = append(errs, found[i])
	}
	alone := step.Once() || step.Where == task.Here || step.AllOrNone
	return ctx.Err() == nil && (len(errs) == 0 || !alone) && r.hasHostsLeft(), errs
}

// tasksOf returns the hosts that tasks run on, in the order of the inventory, and the tasks of each host.
func (r *Run) tasksOf(group []task.Task) ([]*task.Host, map[*task.Host][]task.Task) {
	var targets []*task.Host
	onHost := map[*task.Host][]task.Task{}
	for _, task := range group {
		for _, t := range TargetsOf(r.Site, task) {
			if onHost[t] == nil {
				targets = append(targets, t)
			}
			onHost[t] = append(onHost[t], task)
		}
	}
	order := func(t *task.Host) int { return slices.Index(r.Hosts, t) }
	slices.SortStableFunc(targets, func(a, b *task.Host) int { return cmp.Compare(order(a), order(b)) })
	return targets, onHost
}

// oneByOne calls do for one host after the other, until one fails. The hosts after it get a heldError.
func (r *Run) oneByOne(targets []*task.Host, found []error, do func(t *task.Host) error) {
	failed := ""
	for i, t := range targets {
		if failed != "" {
			found[i] = &heldError{by: failed}
			continue
		}
		if found[i] = do(t); found[i] != nil {
			failed = t.Name
		}
	}
}

// A heldError means that a task was not started on a host because the host before it failed.
type heldError struct{ by string }

// Error names the host that failed.
func (e *heldError) Error() string { return "not started: " + e.by + " failed" }

// waitsFor returns a failed host that the task needs, or "".
func (r *Run) waitsFor(step task.Task) string {
	needed := func(t *task.Host) bool {
		switch {
		case step.AllOrNone:
			return true
		case step.Once():
			// needed by the API server
			beside := r.Cluster.Etcd.Type == manifest.EtcdExternal && t.Is(manifest.RoleEtcd)
			return beside || slices.Contains(TargetsOf(r.Site, step), t)
		}
		return false
	}
	for _, t := range r.Hosts {
		if t.Failed && needed(t) {
			return t.Name
		}
	}
	return ""
}

// hasHostsLeft reports whether a host is left to work on.
func (r *Run) hasHostsLeft() bool {
	return len(r.Hosts) == 0 ||
		slices.ContainsFunc(r.Hosts, func(t *task.Host) bool { return !t.Failed && r.IsWanted(t) })
}

// lookAndDo runs a task unless it is done, and adds the reason to the event.
func (r *Run) lookAndDo(ctx context.Context, step task.Task, t *task.Host, e *task.Event) (task.State, error) {
	if step.Done == nil {
		if r.DryRun && !step.InDryRun {
			return task.Skipped, nil
		}
		return task.Done, step.Do(ctx, t)
	}
	looking, why := task.WithReasons(ctx)
	ok, err := r.IsDone(looking, step, t)
	switch {
	case err != nil:
		return task.Failed, err
	case ok:
		return task.Done, nil
	}
	e.Message = r.Mask.Mask(why.String())
	if r.DryRun {
		return task.Would, nil
	}
	if step.Before != nil {
		if err := step.Before(ctx, t); err != nil {
			return task.Failed, err
		}
	}
	if err := r.Place(ctx, t, step.Files, task.Event{Phase: e.Phase, Task: e.Task, Host: e.Host}); err != nil {
		return task.Failed, err
	}
	return task.Changed, step.Do(ctx, t)
}
