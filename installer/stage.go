package installer

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/manifest"
)

// stagePhase is the phase of Stage after the precheck.
const stagePhase = "stage"

// Stage brings what an installation needs to where Run looks for it: the programs of the selected tasks onto their
// hosts, and images and charts into a registry that runs. Nothing of the hosts is configured. An existing registry is
// only checked; one that does not run yet gets its content from Run. It refuses what Run refuses. The same call
// continues a stopped one and sends nothing twice.
func Stage(ctx context.Context, o engine.Options) (engine.Report, error) {
	return checked(ctx, o, func(ctx context.Context, r *engine.Run, phases []task.Phase) error {
		stage, err := staged(task.InTask(ctx, "look"), r, phases)
		if err != nil {
			return err
		}
		return r.Phases(ctx, []task.Phase{{Name: "precheck", Tasks: []task.Task{plan.PrecheckTask()}}, stage})
	})
}

// staged returns the phase that brings what other phases need.
func staged(ctx context.Context, r *engine.Run, phases []task.Phase) (task.Phase, error) {
	var all []task.Task
	for _, p := range phases {
		all = append(all, p.Tasks...)
	}
	fill := siteregistry.FillTasks(r.Cluster)
	for _, t := range r.Connected(manifest.RoleRegistry) {
		if r.Cluster.ImageRegistry.Type == manifest.RegistryExisting || len(fill) == 0 {
			break
		}
		running, err := siteregistry.Runs(ctx, t)
		if err != nil {
			return task.Phase{}, err
		}
		if !running {
			r.Tell(task.Event{
				Phase: stagePhase, Host: t.Name, State: task.Warned,
				Message: "no registry runs yet: install sends it the images and charts",
			})
			fill = nil
		}
	}
	return task.Phase{Name: stagePhase, Tasks: append(fill, upgrade.Ahead(all)...)}, nil
}
