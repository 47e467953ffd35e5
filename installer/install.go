package installer

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Run installs, or continues an installation, or finds that there is nothing to do. A host on which a task fails is left, and
// the others go on as far as they can without it; the error joins a *engine.TaskError for every host that failed. What was done
// stays, and the next run goes on from there.
func Run(ctx context.Context, o engine.Options) (engine.Report, error) {
	phases, err := o.Selected(Plan(o.Cluster))
	if err != nil {
		return engine.Report{}, err
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return engine.Report{}, err
	}
	r, err := newInstall(o, engine.Installing())
	if err != nil {
		return engine.Report{}, err
	}
	r.Finish = r.KeepReport
	return r.Start(ctx, func(ctx context.Context) error {
		err := checkMembers(task.InTask(ctx, "connect"), r)
		if err == nil {
			err = checkForeign(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = checkNames(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = r.Phases(ctx, phases)
		}
		if r.DryRun {
			err = errors.Join(err, r.OnAll(r.Connected(), func(_ int, t *task.Host) error { return forgetHelper(ctx, t) }))
		}
		return err
	})
}
