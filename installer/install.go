package installer

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Run installs the cluster, or continues an installation, or finds nothing to do. If a task fails on a host, the other
// hosts go on as far as they can; the error joins a *engine.TaskError for every failed host. Finished tasks stay done,
// and the next run continues from there.
func Run(ctx context.Context, o engine.Options) (engine.Report, error) {
	return checked(ctx, o, func(ctx context.Context, r *engine.Run, phases []task.Phase) error {
		err := r.Phases(ctx, phases)
		begin.TellLeft(r, begin.HostNamesOf(r.Without()))
		return err
	})
}

// checked does what the selected phases of a cluster need, unless an installation is refused there.
func checked(ctx context.Context, o engine.Options,
	do func(ctx context.Context, r *engine.Run, phases []task.Phase) error,
) (engine.Report, error) {
	phases, err := o.Selected(plan.Plan(o.Cluster))
	if err != nil {
		return engine.Report{}, err
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return engine.Report{}, err
	}
	r, err := begin.NewFitting(o, engine.Installing())
	if err != nil {
		return engine.Report{}, err
	}
	r.Finish = r.KeepReport
	return r.Start(ctx, func(ctx context.Context) error {
		err := begin.CheckWithout(r)
		if err == nil {
			err = begin.CheckMembers(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = begin.CheckForeign(task.InTask(ctx, "connect"), r)
		}
		if err == nil { // before a script runs
			err = engine.CheckHooks(r.Site)
		}
		if err == nil {
			err = begin.CheckNames(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = upgrade.CheckChanges(task.InTask(ctx, "connect"), r, phases)
		}
		if err == nil {
			err = do(ctx, r, phases)
		}
		if r.DryRun {
			err = errors.Join(err, r.OnAll(r.Connected(),
				func(_ int, t *task.Host) error { return begin.ForgetHelper(ctx, t) }))
		}
		return err
	})
}
