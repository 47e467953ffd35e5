package begin

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// NewFitting prepares a run whose hosts have to fit the cluster.
func NewFitting(o engine.Options, v engine.Operation) (*engine.Run, error) {
	if err := o.Inventory.Check(o.Cluster); err != nil {
		return nil, err
	}
	return New(o, v)
}

// New prepares a run of this package's plan.
func New(o engine.Options, v engine.Operation) (*engine.Run, error) {
	r, err := engine.New(o, v, plan.Planner())
	if err != nil {
		return nil, err
	}
	r.Precheck = func(ctx context.Context) error { return precheckHosts(ctx, r) }
	return r, nil
}

// InPhase does something and reports it as a phase.
func InPhase(r *engine.Run, name string, do func() error) error {
	begin, state := r.Now(), task.Done
	r.Tell(task.Event{Phase: name, State: task.Started})
	err := do()
	if err != nil {
		state = task.Failed
	}
	r.Tell(task.Event{Phase: name, State: state, Duration: plain.Duration(r.Now().Sub(begin))})
	return err
}
