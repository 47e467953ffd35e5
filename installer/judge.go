package installer

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

// judge evaluates what is known, under the operator's rules.
func (r *run) judge(in precheck.Input) (precheck.Report, error) {
	if r.options.Recorded != nil {
		in.Links = r.options.Recorded.Links
	}
	if r.options.Known != nil {
		if err := r.options.Known(in); err != nil {
			return precheck.Report{}, err
		}
	}
	now := r.Now()
	report := precheck.Evaluate(in).Under(r.options.Rules, now)
	report.Time = now
	return report, nil
}

// visitTask is what events call looking at a host for a precheck.
const visitTask = "visit"

// visited reports that a host is being looked at, or was: then h is what is known about it. It is for Precheck, which has
// nothing else to report; an installation looks at hosts that it is connected to already.
func (r *run) visited(name string, h *precheck.Host) {
	if !r.verb.visits {
		return
	}
	e := Event{Phase: "precheck", Task: visitTask, Host: name, State: Started}
	switch {
	case h == nil:
	case h.Err != nil:
		e.State, e.Message = Failed, h.Err.Error()
	default:
		e.State = Done
	}
	r.tell(e)
}

// recorded evaluates facts that were recorded earlier.
func (r *run) recorded(ctx context.Context) (precheck.Report, error) {
	if err := r.findTargets(); err != nil {
		return precheck.Report{}, err
	}
	for _, t := range r.targets {
		known := r.options.Recorded.Host(t.Host)
		r.sessions[t.Name].known = known
		if known.Facts != nil {
			t.Arch = known.Facts.Arch
		}
	}
	return r.evaluate(ctx)
}
