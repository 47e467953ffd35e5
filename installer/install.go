package installer

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Run installs the cluster, or continues an installation, or finds nothing to do. If a task fails on a host, the other
// hosts go on as far as they can; the error joins a *engine.TaskError for every failed host. Finished tasks stay done,
// and the next run continues from there.
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
		err := checkWithout(r)
		if err == nil {
			err = checkMembers(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = checkForeign(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = checkNames(task.InTask(ctx, "connect"), r)
		}
		if err == nil {
			err = checkChanges(task.InTask(ctx, "connect"), r, phases)
		}
		if err == nil {
			err = r.Phases(ctx, phases)
			tellLeft(r, hostNamesOf(r.Without()))
		}
		if r.DryRun {
			err = errors.Join(err, r.OnAll(r.Connected(), func(_ int, t *task.Host) error { return forgetHelper(ctx, t) }))
		}
		return err
	})
}
