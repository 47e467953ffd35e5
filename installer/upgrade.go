package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// apiWait is how long an API server may take to answer before an upgrade: one that was interrupted may have left it
// starting.
const apiWait = 2 * time.Minute

// DrainTimeout is how long the pods of a node may take to leave it, unless UpgradeOptions or Deletion says otherwise.
const DrainTimeout = 5 * time.Minute

// UpgradeOptions says how a cluster is upgraded. Force goes on although the cluster is not healthy; Phases and Limit have
// no place in an upgrade.
type UpgradeOptions struct {
	engine.Options
	// Batch is how many workers are upgraded at the same time.
	Batch Batch
	// DrainTimeout is how long the pods of a node may take to leave it; 0 is DrainTimeout.
	DrainTimeout time.Duration
	// DisableEviction deletes pods instead of evicting them, which PodDisruptionBudgets do not hold up.
	DisableEviction bool
	// Planned is told what will be done, before the cluster's health is looked at.
	Planned func(UpgradePlan)
	// Approve is asked before anything is changed, if there is anything to do on nodes; its error ends the upgrade. nil
	// approves.
	Approve func(UpgradePlan) error
}

// An upgrade is one under way.
type upgrade struct {
	*engine.Run
	how UpgradeOptions
	// clusters are the cluster at each of the plan's steps, demands what a bundle needs for those between.
	clusters map[string]*manifest.Cluster
	demands  map[string][]manifest.Demand
}

// Upgrade brings a cluster to the version of the bundle: minor release by minor release, control planes first and one by
// one, then workers in batches. What is to be done follows from what runs, so an upgrade that stopped, for whatever reason,
// is continued by the same call. It stops at the first node that fails, which stays unschedulable; the error is a
// *StoppedError. A cluster that may not be upgraded is refused with a *RefusedError, one that is not healthy with an
// *UnfitError; then nothing was changed. A dry run tells the plan, and looks at the cluster's health.
func Upgrade(ctx context.Context, o UpgradeOptions) (engine.Report, error) {
	if o.Cluster.WithDefaults().Kubernetes.Distribution != manifest.DistributionKubernetes {
		return engine.Report{}, &RefusedError{o.Cluster.Metadata.Name, o.Cluster.Kubernetes.Version, "this version upgrades clusters that kubeadm has made, and this one is k3s", "see k3s' own documentation"}
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return engine.Report{}, err
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DrainTimeout
	}
	r, err := newInstall(o.Options, engine.Upgrading())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, (&upgrade{Run: r, how: o}).work)
}

func (u *upgrade) work(ctx context.Context) error {
	ctx = task.InTask(ctx, "look")
	if err := checkMembers(ctx, u.Run); err != nil {
		return err
	}
	plan, err := u.look(ctx)
	if err == nil {
		err = u.complete(ctx, plan)
	}
	if err != nil {
		return err
	}
	if u.how.Planned != nil {
		u.how.Planned(plan)
	}
	if !plan.Empty() {
		err := u.phase(ctx, task.Phase{Name: "precheck", Tasks: []task.Task{precheckTask(), u.healthTask(plan)}})
		if err != nil || u.DryRun {
			return err
		}
		if u.how.Approve != nil {
			if err := u.how.Approve(plan); err != nil {
				return err
			}
		}
		if err := u.apply(ctx, plan); err != nil {
			return err
		}
	}
	before, after := around(u.Cluster)
	if !plan.Empty() {
		return u.phase(ctx, after)
	}
	return u.Phases(ctx, []task.Phase{before, after})
}

// phase runs one phase.
func (u *upgrade) phase(ctx context.Context, p task.Phase) error {
	return u.Phases(ctx, []task.Phase{p})
}

// around divides what an install does into what has to be there before a control plane is upgraded (the registry and what
// is in it, etcd beside the cluster, files that API servers read), without what runs on nodes, and the rest.
func around(c *manifest.Cluster) (before, after task.Phase) {
	before, after = task.Phase{Name: "prepare"}, task.Phase{Name: "finish"}
	later := []string{kubeadm.KubeletTask(c).Name} // nodes get these one after the other
	for _, t := range containerTasks(c) {
		later = append(later, t.Name)
	}
	begun := false
	for _, p := range Plan(c) {
		switch p.Name {
		case "pre_hook", "precheck", "post_hook":
			continue
		}
		for _, t := range p.Tasks {
			begun = begun || t.Name == kubeadm.InitTask(c).Name
			if begun || slices.Contains(later, t.Name) {
				after.Tasks = append(after.Tasks, t)
			} else {
				before.Tasks = append(before.Tasks, t)
			}
		}
	}
	return before, after
}

// apply upgrades the nodes.
func (u *upgrade) apply(ctx context.Context, plan UpgradePlan) error {
	before, _ := around(u.Cluster)
	if err := u.phase(ctx, task.Phase{Name: "save", Tasks: []task.Task{u.saveTask(plan)}}); err != nil {
		return err
	}
	if err := u.phase(ctx, before); err != nil {
		return err
	}
	if err := u.walk(ctx, plan); err != nil {
		return err
	}
	return u.saved()
}

// walk goes from version to version.
func (u *upgrade) walk(ctx context.Context, plan UpgradePlan) error {
	for _, version := range plan.Steps {
		u.ChangeSite(func(s *task.Site) { u.SetCluster(s, u.clusters[version]) })
		begin := u.Now()
		phase := "upgrade " + version
		u.Tell(task.Event{Phase: phase, State: task.Started})
		err := u.step(ctx, phase, plan)
		event := task.Event{Phase: phase, State: task.Done, Duration: u.Now().Sub(begin)}
		if err != nil {
			event.State = task.Failed
		}
		u.Tell(event)
		if err != nil {
			return u.stopped(ctx, version, err)
		}
	}
	return nil
}

// step brings all nodes to the version that the run is at. All API servers come before the first kubelet, because no
// kubelet may be newer than an API server that it may meet.
func (u *upgrade) step(ctx context.Context, phase string, plan UpgradePlan) error {
	if u.Cluster.ImageRegistry.Type == manifest.RegistryNone { // each release's images have to be where the nodes are
		for _, step := range cri.PreloadTasks(u.Cluster) {
			if _, errs := u.Group(ctx, phase, []task.Task{step}); len(errs) > 0 {
				return errors.Join(errs...)
			}
		}
	}
	for _, t := range u.controlPlanes() {
		for _, task := range []task.Task{keepTask(u.Cluster), u.controlPlaneTask()} {
			if err := u.TaskOn(ctx, phase, task, t); err != nil {
				return err
			}
		}
	}
	for _, t := range u.controlPlanes() {
		if err := u.node(ctx, phase, t); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(u.workers(), plan.Batch) {
		if err := u.OnAll(batch, func(_ int, t *task.Host) error { return u.node(ctx, phase, t) }); err != nil {
			return err
		}
	}
	return nil
}

// A StoppedError says where an upgrade stopped, and in which state the nodes are.
type StoppedError struct {
	// To is the version that the nodes were being brought to, Nodes a line for each.
	To    string
	Nodes []string
	Err   error
}

// Error has the reason, and a line for each node.
func (e *StoppedError) Error() string {
	return fmt.Sprintf("%v\nthe upgrade to %s stopped there; the nodes are:\n  %s", e.Err, e.To, strings.Join(e.Nodes, "\n  "))
}

// Unwrap returns the reason.
func (e *StoppedError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *StoppedError) Hint() string {
	return "remove the cause and run the same command again: it goes on where this one stopped; docs/day-two/upgrade.md says how to go back instead"
}

// stopped adds the state of the nodes to the reason why an upgrade stopped.
func (u *upgrade) stopped(ctx context.Context, to string, reason error) error {
	if ctx.Err() != nil {
		return reason
	}
	ctx, cancel := task.WithTimeout(task.InTask(ctx, "state"), task.FactsTimeout)
	defer cancel()
	states, apiErr := u.FirstControlPlane().Kube().Nodes(ctx)
	e := &StoppedError{To: to, Err: reason}
	for _, t := range slices.Concat(u.controlPlanes(), u.workers()) {
		e.Nodes = append(e.Nodes, t.Name+": "+stateText(ctx, t, states, apiErr))
	}
	return e
}

// stateText says what is known of a node in the middle of an upgrade.
func stateText(ctx context.Context, t *task.Host, states []corev1.Node, apiErr error) string {
	var parts []string
	if id, _, member, err := member.Recorded(ctx, t); err == nil && member {
		parts = append(parts, id.Version+" altogether")
	}
	if apiErr != nil {
		return strings.Join(append(parts, "the API does not say more"), ", ")
	}
	if s := kube.FindNode(states, t.Name); s != nil {
		parts = append(parts, "kubelet "+s.Status.NodeInfo.KubeletVersion)
		if !kube.IsNodeReady(s) {
			parts = append(parts, "not ready")
		}
		if _, marked := s.Annotations[upgradeMark]; marked {
			parts = append(parts, "in the middle of it")
		}
		if s.Spec.Unschedulable {
			parts = append(parts, "unschedulable")
		}
	}
	return strings.Join(parts, ", ")
}
