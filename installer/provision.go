package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/bootstrap"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Provision applies a program to one host of the inventory, as Cluster API's infrastructure providers do with a
// machine's bootstrap data. With a bundle the host is prepared first; the phases have the names of the operations of
// CAPKK's KKInstance. Steps that succeeded are skipped when the same program runs again. The sentinel is written last.
func Provision(ctx context.Context, o engine.Options, name string, p *provision.Program) (engine.Report, error) {
	o.Limit = []string{name}
	if o.Cluster != nil { // nothing installs the pods of peers in a cluster that is declared
		c := *o.Cluster
		c.ImageDistribution = manifest.ImageDistribution{}
		o.Cluster = &c
	}
	r, err := begin.New(o, engine.Provisioning())
	if err != nil {
		return engine.Report{}, err
	}
	phases, err := instancePhases(r.Cluster, o.Bundle != nil, p)
	if err != nil {
		return engine.Report{}, errors.Join(err, r.Dir.Close())
	}
	for _, wanted := range o.Phases {
		if !slices.ContainsFunc(phases, func(p task.Phase) bool { return p.Name == wanted }) {
			return engine.Report{}, errors.Join(fmt.Errorf("there is no phase %q; the phases are %s", wanted,
				engine.PhaseNames(phases)), r.Dir.Close())
		}
	}
	return r.Start(ctx, func(ctx context.Context) error {
		err := r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
			return claim(task.InTask(ctx, "connect"), t)
		})
		if err == nil {
			err = r.Phases(ctx, phases)
		}
		if r.DryRun {
			err = errors.Join(err, r.OnAll(r.Connected(),
				func(_ int, t *task.Host) error { return begin.ForgetHelper(ctx, t) }))
		}
		return err
	})
}

// claim refuses a node of another cluster or owner before the host is changed, and marks it with the run's owner. reset
// would take it for ours from then on. With the owner's mark, kubeadm's files are those of an earlier document, and so
// they are in a person's run on a host with receipts.
func claim(ctx context.Context, t *task.Host) error {
	marked, err := begin.RefuseOwned(ctx, t)
	if err != nil || marked {
		return err
	}
	if t.Site.Owner == "" {
		ours, err := t.AnyExists(ctx, task.ProvisionDir)
		if err != nil || ours {
			return err
		}
		return begin.RefuseForeign(ctx, t)
	}
	if err := begin.RefuseUnmarked(ctx, t); err != nil || t.Site.DryRun {
		return err
	}
	return begin.MarkOwner(ctx, t, t.Site.Owner)
}

// instancePhases returns the operations of CAPKK for a KKInstance, in its order.
func instancePhases(c *manifest.Cluster, bundled bool, p *provision.Program) ([]task.Phase, error) {
	var phases []task.Phase
	if bundled {
		bootstrap := append(bootstrap.StepTasks("bootstrap", bootstrap.DirectorySteps()), machine.SwapTask(c),
			machine.KernelTask(c), machine.RouteTask(c))
		phases = []task.Phase{
			{Name: "bootstrap", Tasks: bootstrap},
			{Name: "repository", Tasks: []task.Task{machine.PackagesTask(c)}},
			{Name: "binary", Tasks: []task.Task{kubeadm.KubeletTask(c)}},
			{Name: "container-manager", Tasks: plan.ContainerTasks(c)},
		}
	}
	id, err := bootstrap.ProgramDigest(p)
	if err != nil {
		return nil, err
	}
	tasks := append(bootstrap.StepTasks(id, p.Steps), bootstrap.SentinelTask())
	return append(phases, task.Phase{Name: "provisioning", Tasks: tasks}), nil
}
