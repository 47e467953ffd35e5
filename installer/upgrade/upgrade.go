package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// apiWait bounds the wait for an API server before an upgrade: an interrupted upgrade may have left it starting.
const apiWait = 2 * time.Minute

// settleTime exceeds the time in which a kubelet of another minor release restarts the static pods that it finds.
const settleTime = 10 * time.Second

// servicesWait exceeds the time in which a client of the API server that lost it tries again, and some restarts of
// kube-proxy.
const servicesWait = 5 * time.Minute

// upgradePhase begins the names of the phases that upgrade nodes.
const upgradePhase = "upgrade "

// Options are the options of Upgrade. Force upgrades an unhealthy cluster; Phases and Limit have no effect.
type Options struct {
	engine.Options
	// Batch limits the workers that are upgraded at the same time.
	Batch Batch
	// Nodes selects the workers that are upgraded; the zero value selects all. The others are left to a later run,
	// and the error is a *PausedError then.
	Nodes Selection
	// Canary names the first control plane or a worker that comes before the others, which wait for Check, or for
	// another run without Check: the error is a *PausedError then.
	Canary string
	// Window, if not 0, is the time from the call in which nodes begin, as far as it is known how long they take. The
	// error is a *PausedError if nodes are left.
	Window time.Duration
	// Check, if set, is called after each batch of nodes with their names. Its error stops the upgrade.
	Check func(ctx context.Context, nodes []string) error
	// DrainTimeout bounds the drain of a node; 0 is kube.DrainTimeout.
	DrainTimeout time.Duration
	// DisableEviction deletes pods instead of evicting them: PodDisruptionBudgets do not block deletion.
	DisableEviction bool
	// Planned gets the plan before the cluster's health is checked.
	Planned func(Plan)
	// Saved, if set, gets the directory of the data that are saved before the first change.
	Saved func(dir string)
	// Rehearsed, if set, gets what the plan would do, before the cluster's health is checked.
	Rehearsed func(*Rehearsal)
	// Approve gets the plan before anything is changed, if nodes need work. Its error ends the upgrade; nil approves.
	Approve func(Plan) error
}

// An upgrade is an upgrade in progress.
type upgrade struct {
	*nodeWalk
	checkup
	saving
	// clusters has the cluster at each of the plan's steps, demands the needs of the steps between.
	clusters map[string]*manifest.Cluster
	demands  map[string][]manifest.Demand
	// through has the versions of etcd that must not be skipped, by step.
	through map[string]string
	// worked means that nodes were upgraded.
	worked bool
}

func newUpgrade(w *nodeWalk) *upgrade {
	return &upgrade{nodeWalk: w, checkup: checkup{w}, saving: saving{w}}
}

// Upgrade brings a cluster to the version of the bundle: minor release by minor release, control planes first and one
// by one, then workers in batches. The work follows from the running versions, so the same call continues a stopped
// upgrade. It stops at the first node that fails, and that node stays cordoned; the error is a *StoppedError. Before
// any change it refuses impossible upgrades with a *RefusedError and unhealthy clusters with an *UnfitError. A dry run
// reports the plan and checks the cluster's health.
func Upgrade(ctx context.Context, o Options) (engine.Report, error) {
	r, err := upgradeRun(&o)
	if err != nil {
		return engine.Report{}, err
	}
	u := newUpgrade(&nodeWalk{
		Run: r, how: o, settle: settleTime, servicesWait: servicesWait, gate: gate{began: r.Now()},
	})
	r.Finish = u.keepReport
	return r.Start(ctx, u.work)
}

// upgradeRun checks what an upgrade and a rollback need, sets defaults of the options, and returns the run.
func upgradeRun(o *Options) (*engine.Run, error) {
	if o.Cluster.WithDefaults().Kubernetes.Distribution != manifest.DistributionKubernetes {
		return nil, &RefusedError{
			o.Cluster.Metadata.Name, o.Cluster.Kubernetes.Version,
			"kkbundle upgrades clusters of kubeadm, and this is k3s",
			"kkbundle has no upgrade of k3s; docs/site/k3s.md lists what it cannot do, and https://docs.k3s.io/upgrades/manual how to upgrade the hosts by hand",
		}
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return nil, err
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = kube.DrainTimeout
	}
	return begin.NewFitting(o.Options, engine.Upgrading())
}

func (u *upgrade) work(ctx context.Context) (err error) {
	ctx = task.InTask(ctx, "look")
	p, err := u.planned(ctx)
	if err != nil {
		return err
	}
	if !p.Empty() && u.how.Rehearsed != nil {
		r, err := u.rehearse(ctx, p)
		if err != nil {
			return fmt.Errorf("rehearsal: %w", err)
		}
		u.how.Rehearsed(r)
	}
	if !p.Empty() {
		err := u.phase(ctx, task.Phase{Name: "precheck", Tasks: []task.Task{plan.PrecheckTask(), u.healthTask(p)}})
		if err != nil || u.DryRun {
			return err
		}
		if u.how.Approve != nil {
			if err := u.how.Approve(p); err != nil {
				return err
			}
		}
		if err := u.apply(ctx, p); err != nil {
			return err
		}
	}
	defer func() {
		if err == nil {
			begin.TellLeft(u.Run, p.Left())
		}
	}()
	before, after := around(u.Cluster)
	after.Tasks = append(after.Tasks, tidyTask())
	if !p.Empty() {
		u.worked = true
		return u.phase(ctx, after)
	}
	if !u.DryRun {
		if err := u.saved(); err != nil { // a run may have been killed just before
			return err
		}
	}
	return u.Phases(ctx, []task.Phase{before, after})
}

func (u *upgrade) phase(ctx context.Context, p task.Phase) error {
	return u.Phases(ctx, []task.Phase{p})
}

// around divides the tasks of an install. before has those that an upgrade of a control plane needs: the registry and
// its content, external etcd, and files that API servers read, without the tasks of nodes. after has the rest.
func around(c *manifest.Cluster) (before, after task.Phase) {
	before, after = task.Phase{Name: "prepare"}, task.Phase{Name: "finish"}
	later := []string{kubeadm.KubeletTask(c).Name} // nodes get these one by one
	for _, t := range plan.ContainerTasks(c) {
		later = append(later, t.Name)
	}
	begun := false
	for _, p := range plan.Plan(c) {
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

func (u *upgrade) apply(ctx context.Context, plan Plan) error {
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

// walk upgrades the nodes step by step.
func (u *upgrade) walk(ctx context.Context, plan Plan) error {
	for _, version := range plan.Steps {
		u.ChangeSite(func(s *task.Site) { u.SetCluster(s, u.clusters[version]) })
		phase := upgradePhase + version
		var paused *PausedError
		if err := begin.InPhase(u.Run, phase, func() error {
			if err := u.step(ctx, phase, plan); !errors.As(err, &paused) {
				return err
			}
			return nil
		}); err != nil {
			return u.stopped(ctx, version, err)
		}
		if paused != nil {
			return u.pausedAt(ctx, paused, plan, version)
		}
	}
	if slices.ContainsFunc(plan.Nodes, func(n Node) bool { return n.Later && !n.Current }) {
		return u.pausedAt(ctx, &PausedError{
			Reason: "the nodes of --nodes are upgraded",
			Advice: "run the same command with --nodes for other workers, or without it for all",
		}, plan, plan.To)
	}
	return nil
}

// step brings all nodes to the run's version.
func (u *upgrade) step(ctx context.Context, phase string, plan Plan) error {
	d := u.forward(plan.Batch)
	states, err := u.statesIn(ctx, phase)
	if err != nil {
		return err
	}
	u.gate.resumed = map[string]bool{}
	for _, t := range u.nodes() {
		u.gate.resumed[t.Name] = inUpgrade(states, t)
	}
	if t := u.HostNamed(u.how.Canary); t != nil && u.Cluster.Kubernetes.Version != plan.To && !u.gate.resumed[t.Name] {
		there, err := d.isThere(task.InTask(ctx, phase+"/node"), t)
		if err != nil {
			return &engine.TaskError{Phase: phase, Task: "node", Host: t.Name, Err: err}
		}
		if there {
			u.gate.nothing = phase
		}
	}
	if err := u.planesMayBegin(ctx, phase, d); err != nil {
		return err
	}
	if u.Cluster.ImageRegistry.Type == manifest.RegistryNone { // every node needs each release's images
		for _, step := range cri.PreloadTasks(u.Cluster) {
			if _, errs := u.Group(ctx, phase, []task.Task{step}); len(errs) > 0 {
				return errors.Join(errs...)
			}
		}
	}
	return u.pass(ctx, phase, d)
}

// A StoppedError is a failed upgrade, with the state of the nodes.
type StoppedError struct {
	// To is the version of the failed step, Nodes a line for each node.
	To    string
	Nodes []string
	Err   error
	// Back means that the step is a rollback.
	Back bool
}

// Error returns the reason, and a line for each node.
func (e *StoppedError) Error() string {
	verb := "upgrade"
	if e.Back {
		verb = "rollback"
	}
	return fmt.Sprintf("%v\nthe %s to %s stopped there; the nodes are:\n  %s", e.Err, verb, e.To,
		strings.Join(e.Nodes, "\n  "))
}

// Unwrap returns the reason.
func (e *StoppedError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *StoppedError) Hint() string {
	if e.Back {
		return "remove the cause and run the same command again: it continues there; kkbundle upgrade with the later bundle completes the upgrade instead"
	}
	return "remove the cause and run the same command again: it continues there; kkbundle upgrade --rollback with the bundle before goes back instead"
}

// stopped adds the state of the nodes to the reason of a failed upgrade.
func (w *nodeWalk) stopped(ctx context.Context, to string, reason error) error {
	if ctx.Err() != nil {
		return reason
	}
	ctx, cancel := task.WithTimeout(task.InTask(ctx, "state"), task.FactsTimeout)
	defer cancel()
	states, apiErr := w.FirstControlPlane().Kube().Nodes(ctx)
	e := &StoppedError{To: to, Err: reason}
	for _, t := range w.nodes() {
		e.Nodes = append(e.Nodes, t.Name+": "+stateText(ctx, t, states, apiErr))
	}
	return e
}

// stateText describes a node in the middle of an upgrade.
func stateText(ctx context.Context, t *task.Host, states []corev1.Node, apiErr error) string {
	var parts []string
	if id, _, member, err := member.Recorded(ctx, t); err == nil && member {
		parts = append(parts, "complete at "+id.Version)
	}
	if begun, err := marks.UpgradeBegun.Exists(ctx, t); err == nil && begun {
		parts = []string{"not complete"}
	}
	if apiErr != nil {
		return strings.Join(append(parts, "the API server does not answer"), ", ")
	}
	if s := kube.FindNode(states, t.Name); s != nil {
		parts = append(parts, "kubelet "+s.Status.NodeInfo.KubeletVersion)
		if !kube.IsNodeReady(s) {
			parts = append(parts, "not ready")
		}
		if marks.InUpgrade(s) {
			parts = append(parts, "upgrade in progress")
		}
		if s.Spec.Unschedulable {
			parts = append(parts, "unschedulable")
		}
	}
	return strings.Join(parts, ", ")
}
