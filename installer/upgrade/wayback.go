package upgrade

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// ForgetRollback removes the copies of the last upgrade from all nodes. It refuses while an upgrade is unfinished.
func ForgetRollback(ctx context.Context, o engine.Options) (engine.Report, error) {
	r, err := begin.NewFitting(o, engine.Upgrading())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		if err := (&nodeWalk{Run: r}).checkWithout(); err != nil {
			return err
		}
		for _, t := range r.Connected(manifest.RoleCluster) {
			kept, there, err := marks.FindCopies(task.InTask(ctx, "look"), t)
			if err != nil {
				return err
			}
			if there && !kept.Finished {
				return &RefusedError{
					r.Cluster.Metadata.Name, r.Cluster.Kubernetes.Version, "the copies of " + t.Name +
						" belong to an unfinished upgrade",
					"continue the upgrade or roll it back",
				}
			}
		}
		err := r.Phases(ctx, []task.Phase{{Name: "forget", Tasks: []task.Task{forgetTask()}}})
		if err == nil {
			begin.TellLeft(r, begin.HostNamesOf(r.Without()))
		}
		return err
	})
}

// forgetTask removes the copies of the last upgrade.
func forgetTask() task.Task {
	return task.Task{
		Name: "forget-copies", Roles: []manifest.Role{manifest.RoleCluster}, Independent: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.Test(ctx, "test", "-e", marks.CopiesDir)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return marks.ForgetCopies(ctx, t)
		},
	}
}

// keepReport writes the run's report, and keeps that of a complete upgrade for the estimate of the next one, unless the
// one that is kept knows a kind of node that it does not. Of a paused upgrade it is kept if it knows more.
func (u *upgrade) keepReport(ctx context.Context, cause error) error {
	_, paused := errors.AsType[*PausedError](cause)
	if err := u.KeepReport(ctx, cause); err != nil || u.DryRun || !paused && (cause != nil || !u.worked) {
		return err
	}
	data, err := u.Dir.Read(engine.ReportJSONFile)
	if err != nil {
		return err
	}
	was, is := u.lastTimes(), u.timesIn(data)
	if !is.knows(was) || paused && was.knows(is) {
		return nil
	}
	return u.Dir.Write(marks.UpgradeReport, data)
}

// lastTimes returns the times of the report that is kept in this work directory, 0 if there is none.
func (u *upgrade) lastTimes() times {
	data, err := u.Dir.Read(marks.UpgradeReport)
	if err != nil {
		return times{}
	}
	return u.timesIn(data)
}

// timesIn returns the times in a report. A host that the inventory no longer has counts as a worker.
func (u *upgrade) timesIn(data []byte) times {
	var run report.Run
	if capped.JSON(data, capped.MaxValues, &run) != nil || run.Version != 1 {
		return times{}
	}
	return timesOf(run, func(host string) bool {
		h := u.HostNamed(host)
		return h != nil && h.Is(manifest.RoleControlPlane)
	})
}
