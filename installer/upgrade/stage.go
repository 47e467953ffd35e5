package upgrade

import (
	"context"
	"errors"
	"slices"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node/transfer"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// stagePhase is the phase of Stage.
const stagePhase = "stage"

// Stage brings what an upgrade needs to where the upgrade looks for it: images and charts into the site's registry,
// images into the nodes' runtimes, and programs onto the hosts, beside those in use. Nothing that runs is changed. It
// refuses what Upgrade refuses, except that the cluster may be unhealthy: hosts need room. The same call continues a
// stopped one and sends nothing twice.
func Stage(ctx context.Context, o Options) (engine.Report, error) {
	r, err := upgradeRun(&o)
	if err != nil {
		return engine.Report{}, err
	}
	u := newUpgrade(&nodeWalk{Run: r, how: o})
	return r.Start(ctx, u.stageAll)
}

func (u *upgrade) stageAll(ctx context.Context) error {
	ctx = task.InTask(ctx, "look")
	p, err := u.planned(ctx)
	if err != nil {
		return err
	}
	check := task.Phase{Name: "precheck", Tasks: []task.Task{u.roomTask(p)}}
	if err := u.phase(ctx, check); err != nil {
		return err
	}
	return u.eachStep(p, func(tasks []task.Task) error {
		return u.phase(ctx, task.Phase{Name: stagePhase, Tasks: tasks})
	})
}

// planned returns the plan of an upgrade that is possible and that the bundle is complete for.
func (u *upgrade) planned(ctx context.Context) (Plan, error) {
	if err := u.checkWithout(); err != nil {
		return Plan{}, err
	}
	if err := begin.CheckMembers(ctx, u.Run); err != nil {
		return Plan{}, err
	}
	p, err := u.look(ctx)
	if err == nil {
		err = u.complete(ctx, p)
	}
	if err == nil {
		p.Changes, err = u.changes(ctx)
	}
	if err == nil && u.how.Planned != nil {
		u.how.Planned(p)
	}
	return p, err
}

// roomTask checks that hosts have room for an upgrade.
func (c checkup) roomTask(p Plan) task.Task {
	return task.Task{
		Name: "room", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, InDryRun: true,
		Do: func(ctx context.Context, t *task.Host) error {
			reasons := c.onEach(c.nodes(), func(t *task.Host) []error {
				return append(c.roomFor(ctx, t, p), roomToKeep(ctx, t, p)...)
			})
			if len(reasons) == 0 || ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return c.unfit(t, &UnfitError{Reasons: reasons})
		},
	}
}

// roomToKeep compares the free space with the space of the programs of all steps that are not kept on the host yet.
func roomToKeep(ctx context.Context, t *task.Host, p Plan) []error {
	files, err := begin.FileSpace(ctx, t)
	if err != nil {
		return []error{err}
	}
	kept, err := begin.Used(ctx, t, transfer.Dir)
	if err != nil {
		return []error{err}
	}
	return fits(ctx, t, map[string]int64{task.StateDir: max(0, files*int64(max(1, len(p.Steps)))-kept)})
}

// eachStep calls do with the tasks of a stage for each step of a plan, at the step's version.
func (u *upgrade) eachStep(p Plan, do func(tasks []task.Task) error) error {
	last := u.Cluster
	at := func(c *manifest.Cluster) { u.ChangeSite(func(s *task.Site) { u.SetCluster(s, c) }) }
	defer at(last)
	if err := do(siteregistry.FillTasks(last)); err != nil { // nodes pull from there
		return err
	}
	for _, version := range p.Steps {
		if version == p.To {
			break
		}
		at(u.clusters[version])
		if err := do(append(Ahead(nodePrograms(u.Cluster)), cri.AheadTasks(u.Cluster)...)); err != nil {
			return err
		}
	}
	at(last)
	var all []task.Task
	for _, phase := range plan.Plan(last) {
		all = append(all, phase.Tasks...)
	}
	return do(append(Ahead(all), cri.AheadTasks(last)...))
}

// Ahead returns what brings the files of tasks to their hosts.
func Ahead(tasks []task.Task) []task.Task {
	var list []task.Task
	for _, t := range tasks {
		if len(t.Files) > 0 {
			list = append(list, t.Ahead())
		}
	}
	return list
}

// lacking names, by host, the tasks of Stage that have something to do.
func (u *upgrade) lacking(ctx context.Context, p Plan) (map[string][]string, error) {
	lacks := map[string][]string{}
	err := u.eachStep(p, func(tasks []task.Task) error {
		nodes := u.nodes()
		found := make([][]string, len(nodes))
		err := u.OnAll(nodes, func(i int, t *task.Host) error {
			for _, step := range tasks {
				if step.Done == nil || !step.Independent || !slices.ContainsFunc(step.Roles, t.Is) {
					continue
				}
				ok, err := u.IsDone(ctx, step, t)
				if err != nil && !errors.As(err, new(*host.ExitError)) {
					return err
				}
				if !ok {
					found[i] = append(found[i], step.Name)
				}
			}
			return nil
		})
		for i, t := range nodes {
			for _, name := range found[i] {
				if !slices.Contains(lacks[t.Name], name) {
					lacks[t.Name] = append(lacks[t.Name], name)
				}
			}
		}
		return err
	})
	return lacks, err
}
