package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// apiWait is how long an API server may take to answer before an upgrade: one that was interrupted may have left it
// starting.
const apiWait = 2 * time.Minute

// DrainTimeout is how long a node's pods may take to leave it, unless UpgradeOptions says otherwise.
const DrainTimeout = 5 * time.Minute

// UpgradeOptions says how a cluster is upgraded. Force goes on although the cluster is not healthy; Phases and Limit have
// no place in an upgrade.
type UpgradeOptions struct {
	Options
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
	*run
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
func Upgrade(ctx context.Context, o UpgradeOptions) (Report, error) {
	if o.Cluster.WithDefaults().Kubernetes.Distribution != "kubernetes" {
		return Report{}, &RefusedError{o.Cluster.Metadata.Name, o.Cluster.Kubernetes.Version, "this version upgrades clusters that kubeadm has made, and this one is k3s", "see k3s' own documentation"}
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return Report{}, err
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DrainTimeout
	}
	r, err := newInstall(o.Options)
	if err != nil {
		return Report{}, err
	}
	r.upgrading = true
	return r.start(ctx, (&upgrade{run: r, how: o}).work)
}

func (u *upgrade) work(ctx context.Context) error {
	ctx = inTask(ctx, "look")
	if err := u.checkMembers(ctx); err != nil {
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
		err := u.phase(ctx, Phase{Name: "precheck", Tasks: []Task{precheckTask(), u.healthTask(plan)}})
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
	before, after := around(u.cluster)
	if !plan.Empty() {
		return u.phase(ctx, after)
	}
	return u.phases(ctx, []Phase{before, after})
}

// phase runs one phase.
func (u *upgrade) phase(ctx context.Context, p Phase) error { return u.phases(ctx, []Phase{p}) }

// around divides what an install does into what has to be there before a control plane is upgraded (the registry and what
// is in it, etcd beside the cluster, files that API servers read), without what runs on nodes, and the rest.
func around(c *manifest.Cluster) (before, after Phase) {
	before, after = Phase{Name: "prepare"}, Phase{Name: "finish"}
	later := []string{kubeletTask(c).Name} // nodes get these one after the other
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
			begun = begun || t.Name == initTask(c).Name
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
	before, _ := around(u.cluster)
	if err := u.phase(ctx, Phase{Name: "save", Tasks: []Task{u.saveTask(plan)}}); err != nil {
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
		u.at(u.clusters[version])
		begin := u.Now()
		phase := "upgrade " + version
		u.tell(Event{Phase: phase, State: Started})
		err := u.step(ctx, phase, plan)
		event := Event{Phase: phase, State: Done, Duration: u.Now().Sub(begin)}
		if err != nil {
			event.State = Failed
		}
		u.tell(event)
		if err != nil {
			return u.stopped(ctx, version, err)
		}
	}
	return nil
}

// at makes the run work with another version of the cluster.
func (r *run) at(c *manifest.Cluster) {
	r.cluster = c.WithDefaults()
	r.Cluster = r.cluster
	r.on = r.cluster.ForHosts(r.Inventory)
	r.packages = rolePackages{cluster: r.cluster, wanted: len(r.distributions()) > 0, known: map[string][]string{}}
}

// step brings all nodes to the version that the run is at. All API servers come before the first kubelet, because no
// kubelet may be newer than an API server that it may meet.
func (u *upgrade) step(ctx context.Context, phase string, plan UpgradePlan) error {
	if u.cluster.ImageRegistry.Type == "none" { // each release's images have to be where the nodes are
		for _, task := range preloadTasks(u.cluster) {
			if _, errs := u.group(ctx, phase, []Task{task}); len(errs) > 0 {
				return errors.Join(errs...)
			}
		}
	}
	for _, t := range u.controlPlanes() {
		for _, task := range []Task{keepTask(u.cluster), u.controlPlaneTask()} {
			if err := u.taskOn(ctx, phase, task, t); err != nil {
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
		if err := u.onAll(batch, func(_ int, t *Target) error { return u.node(ctx, phase, t) }); err != nil {
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
	ctx, cancel := bounded(inTask(ctx, "state"), factsTimeout)
	defer cancel()
	states, apiErr := u.firstControlPlane().nodeStates(ctx)
	e := &StoppedError{To: to, Err: reason}
	for _, t := range slices.Concat(u.controlPlanes(), u.workers()) {
		e.Nodes = append(e.Nodes, t.Name+": "+t.stateText(ctx, states, apiErr))
	}
	return e
}

// stateText says what is known of a node in the middle of an upgrade.
func (t *Target) stateText(ctx context.Context, states []nodeState, apiErr error) string {
	var parts []string
	if id, _, member, err := t.recorded(ctx); err == nil && member {
		parts = append(parts, versionOf(id)+" altogether")
	}
	if apiErr != nil {
		return strings.Join(append(parts, "the API does not say more"), ", ")
	}
	for _, s := range states {
		if s.Metadata.Name != t.Name {
			continue
		}
		parts = append(parts, "kubelet "+s.Status.NodeInfo.KubeletVersion)
		if s.ready().Status != "True" {
			parts = append(parts, "not ready")
		}
		if _, marked := s.Metadata.Annotations[upgradeMark]; marked {
			parts = append(parts, "in the middle of it")
		}
		if s.Spec.Unschedulable {
			parts = append(parts, "unschedulable")
		}
	}
	return strings.Join(parts, ", ")
}
