package installer

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/kkbundle/kkbundle/manifest"
)

// phases runs the phases in order. A host on which a task fails gets no further tasks, and the others go on without it. The
// run ends early where they cannot: a task that is done once for the cluster has failed, or waits for a host that has. The
// error joins those of all hosts.
func (r *run) phases(ctx context.Context, phases []Phase) error {
	var errs []error
	for _, p := range phases {
		begin, failures := r.Now(), len(errs)
		r.tell(Event{Phase: p.Name, State: Started})
		goesOn := true
		for group := range apart(p.Tasks) {
			var failed []error
			if goesOn, failed = r.group(ctx, p.Name, group); len(failed) > 0 {
				errs = append(errs, failed...)
			}
			if !goesOn {
				break
			}
		}
		state := Done
		if !goesOn || len(errs) > failures {
			state = Failed
		}
		r.tell(Event{Phase: p.Name, State: state, Duration: r.Now().Sub(begin)})
		if !goesOn {
			break
		}
	}
	err := errors.Join(errs...)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// apart cuts a phase's tasks into groups: tasks in a row that each host goes through at its own pace, and single ones.
func apart(tasks []Task) iter.Seq[[]Task] {
	return func(yield func([]Task) bool) {
		for len(tasks) > 0 {
			n := slices.IndexFunc(tasks, func(t Task) bool { return !t.Apart })
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

// group runs a group of tasks on its hosts and tells whether the run goes on.
func (r *run) group(ctx context.Context, phase string, group []Task) (goesOn bool, errs []error) {
	task := group[0] // the only one, unless they are apart
	if waits := r.waitsFor(task); waits != "" {
		r.tell(Event{Phase: phase, Task: task.Name, State: Skipped, Message: "not begun: it waits for " + waits + ", which failed"})
		return false, nil
	}
	targets, onHost := r.tasksOf(group)
	found := make([]error, len(targets))
	if task.Where == OneByOne {
		r.oneByOne(targets, found, func(t *Target) error { return r.taskOn(ctx, phase, task, t) })
	} else {
		_ = r.onAll(targets, func(i int, t *Target) error {
			for _, one := range onHost[t] {
				if found[i] = r.taskOn(ctx, phase, one, t); found[i] != nil {
					break
				}
			}
			return nil // each one's error is looked at below
		})
	}
	for i, t := range targets {
		if found[i] == nil {
			continue
		}
		t.fell = true
		var held *heldError
		if errors.As(found[i], &held) {
			r.tell(Event{Phase: phase, Task: task.Name, Host: t.Name, State: Skipped, Message: held.Error()})
			continue
		}
		errs = append(errs, found[i])
	}
	alone := task.once() || task.Where == Here || task.Together
	return ctx.Err() == nil && (len(errs) == 0 || !alone) && r.standing(), errs
}

// tasksOf returns the hosts that tasks run on, in the order of the inventory, and which of them on each.
func (r *run) tasksOf(group []Task) ([]*Target, map[*Target][]Task) {
	var targets []*Target
	onHost := map[*Target][]Task{}
	for _, task := range group {
		for _, t := range r.targetsOf(task) {
			if onHost[t] == nil {
				targets = append(targets, t)
			}
			onHost[t] = append(onHost[t], task)
		}
	}
	order := func(t *Target) int { return slices.Index(r.targets, t) }
	slices.SortStableFunc(targets, func(a, b *Target) int { return cmp.Compare(order(a), order(b)) })
	return targets, onHost
}

// oneByOne does something on one host after the other. Those after one that failed are held up.
func (r *run) oneByOne(targets []*Target, found []error, do func(t *Target) error) {
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

// A heldError says that a host's turn does not come, because the one before it failed.
type heldError struct{ by string }

// Error names the host before.
func (e *heldError) Error() string { return "not begun: it waits for " + e.by + ", which failed" }

// waitsFor returns which host that failed a task cannot do without; "" if there is none.
func (r *run) waitsFor(task Task) string {
	needed := func(t *Target) bool {
		switch {
		case task.Together:
			return true
		case task.once():
			beside := r.cluster.Etcd.Type == manifest.EtcdExternal && t.Is(manifest.RoleEtcd) // the API server needs it
			return beside || slices.Contains(r.targetsOf(task), t)
		}
		return false
	}
	for _, t := range r.targets {
		if t.fell && needed(t) {
			return t.Name
		}
	}
	return ""
}

// standing tells whether there is a host left to work on.
func (r *run) standing() bool {
	return len(r.targets) == 0 || slices.ContainsFunc(r.targets, func(t *Target) bool { return !t.fell && r.isWanted(t) })
}

// lookAndDo does a task where looking finds that it has to be done, and puts the reason into the event.
func (r *run) lookAndDo(ctx context.Context, task Task, t *Target, e *Event) (State, error) {
	if task.Done == nil {
		if r.DryRun && !task.Look {
			return Skipped, nil
		}
		return Done, task.Do(ctx, t)
	}
	looking, why := withReasons(ctx)
	ok, err := r.isDone(looking, task, t)
	switch {
	case err != nil:
		return Failed, err
	case ok:
		return Done, nil
	}
	e.Message = r.mask.mask(why.String())
	if r.DryRun {
		return Would, nil
	}
	if err := r.place(ctx, t, task.Files, Event{Phase: e.Phase, Task: e.Task, Host: e.Host}); err != nil {
		return Failed, err
	}
	return Changed, task.Do(ctx, t)
}
