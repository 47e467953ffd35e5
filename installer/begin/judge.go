package begin

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
)

// judge evaluates the known facts under the operator's rules.
func judge(r *engine.Run, in precheck.Input) (precheck.Report, error) {
	if r.Options.Recorded != nil {
		in.Links = r.Options.Recorded.Links
	}
	if r.Options.Known != nil {
		if err := r.Options.Known(in); err != nil {
			return precheck.Report{}, err
		}
	}
	now := r.Now()
	report := precheck.Evaluate(in).Under(r.Options.Rules, now)
	report.Time = now
	return report, nil
}

// visitTask names a host's examination in events.
const visitTask = "visit"

// visited reports the start of a host's examination if h is nil, else its end. Only Precheck reports it; an
// installation examines hosts that it is connected to already.
func visited(r *engine.Run, name string, h *precheck.Host) {
	if !r.Operation.Visits {
		return
	}
	e := task.Event{Phase: "precheck", Task: visitTask, Host: name, State: task.Started}
	switch {
	case h == nil:
	case h.Err != nil:
		e.State, e.Message = task.Failed, h.Err.Error()
	default:
		e.State = task.Done
	}
	r.Tell(e)
}

// recorded evaluates facts recorded earlier.
func recorded(ctx context.Context, r *engine.Run) (precheck.Report, error) {
	if err := r.FindTargets(); err != nil {
		return precheck.Report{}, err
	}
	for _, t := range r.Hosts {
		known := r.Options.Recorded.Host(t.Host)
		r.Sessions[t.Name].Known = known
		if known.Facts != nil {
			t.Arch = known.Facts.Arch
		}
	}
	return evaluate(ctx, r)
}

// visit connects to the host and examines it.
func visit(ctx context.Context, r *engine.Run, t *task.Host) {
	t.Err = r.ConnectTo(task.InTask(ctx, "connect"), t)
	known := examine(task.InTask(ctx, "precheck"), r, t)
	r.Sessions[t.Name].Known = known
	if task.IsUnresponsive(known.Err) {
		t.Err = known.Err
		engine.DropConnection(t)
	}
}
