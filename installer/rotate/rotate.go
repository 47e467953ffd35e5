package rotate

import (
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Logins replaces logins of the cluster's registry. The registry accepts the new and the old login of the hosts
// until all hosts have the new one. A run that was interrupted is continued by the next one.
func Logins(ctx context.Context, o engine.Options, which siteregistry.Logins) (engine.Report, error) {
	if kind := o.Cluster.WithDefaults().ImageRegistry.Type; !kind.Installed() {
		return engine.Report{}, fmt.Errorf(
			"imageRegistry.type %s: kkbundle did not install this registry: change its logins there, then run kkbundle install", kind)
	}
	if o.Cluster.ImageRegistry.Type == manifest.RegistryHarbor && which.Push {
		return engine.Report{}, siteregistry.ErrAdmin
	}
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		if err := begin.RefuseHandedOver(task.InTask(ctx, "connect"), r); err != nil {
			return err
		}
		return r.Phases(ctx, rotationPhases(r.Cluster, which))
	})
}

func rotationPhases(c *manifest.Cluster, which siteregistry.Logins) []task.Phase {
	registries := append(liveOnly(plan.RegistryTasks(c)), siteregistry.LoginTasks(c)...)
	phases := []task.Phase{
		{Name: "logins", Tasks: []task.Task{siteregistry.RotateTask(which)}},
		{Name: "registry", Tasks: registries},
	}
	if !which.Pull {
		return phases
	}
	return append(phases,
		task.Phase{Name: "nodes", Tasks: liveOnly(plan.Distribution(c).Nodes(c))},
		task.Phase{Name: "old-login", Tasks: append(siteregistry.EndRotationTasks(c), registries...)},
	)
}

// liveOnly returns the tasks' changes of live files, which include those with a login.
func liveOnly(tasks []task.Task) []task.Task {
	var list []task.Task
	for _, step := range tasks {
		if live, ok := step.LiveOnly(); ok {
			list = append(list, live)
		}
	}
	return list
}
