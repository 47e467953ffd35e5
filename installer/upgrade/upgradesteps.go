package upgrade

import (
	"context"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A nodeWalk goes over the nodes of a cluster to another release: forward in an upgrade, back in a rollback.
type nodeWalk struct {
	*engine.Run
	how Options
	// settle is how long a control plane has to stay ready.
	settle time.Duration
	// servicesWait bounds the wait for Services that follow the API. lenient means that nodes are drained after it
	// even so.
	servicesWait time.Duration
	lenient      bool

	// kept are the copies that a rollback puts back, by the node's name.
	kept map[string]marks.Copies
	// patience bounds the wait of a rollback for an API server that may be dead.
	patience time.Duration
	// member asks a member of kubeadm's etcd.
	member func(ctx context.Context, t *task.Host) (health.EtcdMetrics, error)
}

// A stage is a part of the way over the nodes.
type stage int

const (
	opening       stage = iota // on all control planes, one after the other
	controlPlanes              // the same
	visits                     // on all nodes, in groups that are drained at the same time
)

// A nodeStep is a step of a node to another release, and its way back. Either returns the tasks of a node, none if it
// has nothing to do there. All tasks can be done again: to continue is to go the whole way once more.
type nodeStep struct {
	stage    stage
	do, back func(t *task.Host) []task.Task
}

// nodeSteps returns the steps of a node in the order of an upgrade, each beside its way back. The order of the stages
// is that of a direction.
func (w *nodeWalk) nodeSteps(phase string) []nodeStep {
	every := func(tasks ...task.Task) func(*task.Host) []task.Task {
		return func(*task.Host) []task.Task { return tasks }
	}
	on := func(here func(t *task.Host) bool, step task.Task) func(*task.Host) []task.Task {
		return func(t *task.Host) []task.Task {
			if here(t) {
				return []task.Task{step}
			}
			return nil
		}
	}
	isWorker := func(t *task.Host) bool { return !t.Is(manifest.RoleControlPlane) }
	isFirst := func(t *task.Host) bool { return t.Name == w.FirstControlPlane().Name }
	keep, begin, drain := keepTask(w.Cluster), w.beginTask(phase), w.drainTask()
	runtime, kubelet := plan.ContainerTasks(w.Cluster), restarted(kubeadm.KubeletTask(w.Cluster))
	return []nodeStep{
		// All control planes keep before the first one changes objects. The way back begins with marks: the upgrade
		// of the node is not complete.
		{opening, every(keep), every(begin)},
		// kubeadm changes the cluster's objects with the first control plane.
		{opening, every(), on(isFirst, w.objectsTask())},
		{controlPlanes, every(w.controlPlaneTask()), every(w.formerPlaneTask())},
		{visits, every(keep), on(isWorker, begin)},
		{visits, every(drain), every(drain)},
		{visits, on(isWorker, kubeletConfigTask(w.Cluster)), w.formerKubeletConfig},
		{visits, every(runtime...), every(runtime...)},
		{visits, every(kubelet), every(kubelet)},
		{visits, every(w.readyTask(w.nodeIsBack)), every(w.readyTask(w.kubeletIsBack))},
		// The record comes after the node's return. On the way back a control plane gets it with its API server.
		{visits, every(recordTask(finish)), on(isWorker, recordTask(marks.EndUpgrade))},
		{visits, every(uncordonTask()), every(uncordonTask())},
	}
}

// A direction is one of the two ways over the nodes.
type direction struct {
	stages []stage
	planes []*task.Host
	// groups are the nodes in the order of their visits.
	groups [][]*task.Host
	tasks  func(s nodeStep, t *task.Host) []task.Task
	// isThere reports whether a node needs no visit. arrive then does what a run may have left undone that was killed
	// just before the end.
	isThere func(ctx context.Context, t *task.Host) (bool, error)
	arrive  func(ctx context.Context, phase string, t *task.Host) error
}

// forward is the direction of an upgrade. API servers come first: no kubelet may be newer than an API server.
func (w *nodeWalk) forward(batch int) direction {
	planes := w.controlPlanes()
	return direction{
		stages: []stage{opening, controlPlanes, visits}, planes: planes,
		groups:  slices.Concat(oneByOne(planes), slices.Collect(slices.Chunk(w.workers(), batch))),
		tasks:   func(s nodeStep, t *task.Host) []task.Task { return s.do(t) },
		isThere: isCurrent, arrive: w.arrive,
	}
}

// backward is the direction of a rollback. Kubelets come first, for the same reason.
func (w *nodeWalk) backward(batch int) direction {
	planes := slices.Clone(w.controlPlanes())
	slices.Reverse(planes)
	return direction{
		stages: []stage{opening, visits, controlPlanes}, planes: planes,
		groups:  slices.Concat(slices.Collect(slices.Chunk(w.workers(), batch)), oneByOne(planes)),
		tasks:   func(s nodeStep, t *task.Host) []task.Task { return s.back(t) },
		isThere: w.kubeletIsOld, arrive: w.arriveBack,
	}
}

// pass goes over the nodes in a direction.
func (w *nodeWalk) pass(ctx context.Context, phase string, d direction) error {
	for _, s := range d.stages {
		if s == visits {
			if err := w.visitAll(ctx, phase, d); err != nil {
				return err
			}
			continue
		}
		for _, step := range w.nodeSteps(phase) {
			if step.stage != s {
				continue
			}
			for _, t := range d.planes {
				if err := w.tasksOn(ctx, phase, d.tasks(step, t), t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *nodeWalk) tasksOn(ctx context.Context, phase string, tasks []task.Task, t *task.Host) error {
	for _, one := range tasks {
		if err := w.TaskOn(ctx, phase, one, t); err != nil {
			return err
		}
	}
	return nil
}

func (w *nodeWalk) visitAll(ctx context.Context, phase string, d direction) error {
	turns, err := w.turns(ctx, phase, d.groups)
	if err != nil {
		return err
	}
	for _, turn := range turns {
		services := w.services(ctx, phase)
		if err := w.OnAll(turn, func(_ int,
			t *task.Host,
		) error {
			return w.visit(ctx, phase, t, d, services)
		}); err != nil {
			return err
		}
	}
	return nil
}

// turns returns groups of nodes that are drained at the same time, one group after the other. Nodes that an earlier
// run has left cordoned come first: until they are back, pods of others may have nowhere to go.
func (w *nodeWalk) turns(ctx context.Context, phase string, groups [][]*task.Host) ([][]*task.Host, error) {
	states, err := w.states(task.InTask(ctx, phase+"/node"))
	if err != nil {
		return nil, &engine.TaskError{Phase: phase, Task: "node", Host: w.FirstControlPlane().Name, Err: err}
	}
	isCordoned := func(t *task.Host) bool {
		n := kube.FindNode(states, t.Name)
		return n != nil && marks.InUpgrade(n)
	}
	var first, others [][]*task.Host
	for _, group := range groups {
		first = append(first, slices.DeleteFunc(slices.Clone(group), func(t *task.Host) bool { return !isCordoned(t) }))
		others = append(others, slices.DeleteFunc(slices.Clone(group), isCordoned))
	}
	return slices.DeleteFunc(slices.Concat(first, others), func(group []*task.Host) bool { return len(group) == 0 }),
		nil
}

// oneByOne returns a group for each host.
func oneByOne(hosts []*task.Host) [][]*task.Host { return slices.Collect(slices.Chunk(hosts, 1)) }

// visit brings a node to the run's release unless it is there. services is called before anything is drained.
func (w *nodeWalk) visit(ctx context.Context, phase string, t *task.Host, d direction, services func() error) error {
	there, err := d.isThere(task.InTask(ctx, phase+"/node"), t)
	if err != nil {
		return &engine.TaskError{Phase: phase, Task: "node", Host: t.Name, Err: err}
	}
	if there {
		return d.arrive(ctx, phase, t)
	}
	if err := services(); err != nil {
		return err
	}
	for _, step := range w.nodeSteps(phase) {
		if step.stage != visits {
			continue
		}
		if err := w.tasksOn(ctx, phase, d.tasks(step, t), t); err != nil {
			return err
		}
	}
	return nil
}

// arrive completes a node that has the release of an upgrade.
func (w *nodeWalk) arrive(ctx context.Context, phase string, t *task.Host) error {
	if err := finish(task.InTask(ctx, phase+"/record"), t); err != nil {
		return &engine.TaskError{Phase: phase, Task: "record", Host: t.Name, Err: err}
	}
	if err := uncordon(task.InTask(ctx, phase+"/uncordon"), t); err != nil {
		return &engine.TaskError{Phase: phase, Task: "uncordon", Host: t.Name, Err: err}
	}
	w.Tell(task.Event{Phase: phase, Task: "node", Host: t.Name, State: task.Done})
	return nil
}

// arriveBack completes a node whose kubelet is the one of the release before.
func (w *nodeWalk) arriveBack(ctx context.Context, phase string, t *task.Host) error {
	w.Tell(task.Event{Phase: phase, Task: "node", Host: t.Name, State: task.Done})
	return w.TaskOn(ctx, phase, uncordonTask(), t)
}
