package upgrade

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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

	gate gate
	// later are the workers that Options.Nodes leaves to another run, by name.
	later map[string]bool

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
		{visits, every(kubeadm.ArgumentsTask(), kubeadm.SecretsTask()), every()},
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
	// groups returns the nodes in the order of their visits, by the nodes of the API.
	groups func(states []corev1.Node) [][]*task.Host
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
		groups: func(states []corev1.Node) [][]*task.Host {
			return slices.Concat(oneByOne(planes), w.batches(states, batch))
		},
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
		groups: func(states []corev1.Node) [][]*task.Host {
			return slices.Concat(w.batches(states, batch), oneByOne(planes))
		},
		tasks:   func(s nodeStep, t *task.Host) []task.Task { return s.back(t) },
		isThere: w.kubeletIsOld, arrive: w.arriveBack,
	}
}

// batches returns the workers that are drained at the same time, none of two zones, and the canary before all.
func (w *nodeWalk) batches(states []corev1.Node, most int) [][]*task.Host {
	workers := slices.DeleteFunc(w.workers(), func(t *task.Host) bool { return w.later[t.Name] })
	isCanary := func(t *task.Host) bool { return t.Name == w.how.Canary }
	var first [][]*task.Host
	if n := slices.IndexFunc(workers, isCanary); n >= 0 {
		first = oneByOne(workers[n : n+1])
	}
	zone := func(t *task.Host) string {
		if n := kube.FindNode(states, t.Name); n != nil {
			return n.Labels[corev1.LabelTopologyZone]
		}
		return ""
	}
	return append(first, batchesOf(slices.DeleteFunc(slices.Clone(workers), isCanary), zone, most)...)
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
				if err := w.planeStep(ctx, phase, step, t, d); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// planeStep does a step of a control plane before the visits. The API server of a canary is looked at before that of
// the next one.
func (w *nodeWalk) planeStep(ctx context.Context, phase string, step nodeStep, t *task.Host, d direction) error {
	this := []*task.Host{t}
	if err := w.mayBegin(phase, this, goingOn); err != nil {
		return err
	}
	if err := w.tasksOn(ctx, phase, d.tasks(step, t), t); err != nil {
		return err
	}
	if step.stage == controlPlanes && t.Name == w.how.Canary {
		return w.passed(ctx, phase, this, 0)
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
	turns, err := w.turns(ctx, phase, d)
	if err != nil {
		return err
	}
	for _, turn := range turns {
		isCanary := w.isCanary(turn)
		if turn, err = w.absent(ctx, phase, turn, d); err != nil {
			return err
		}
		if len(turn) == 0 {
			if isCanary { // an earlier run ended before the canary was looked at
				if err := w.passed(ctx, phase, []*task.Host{w.HostNamed(w.how.Canary)}, 0); err != nil {
					return err
				}
			}
			continue
		}
		need := w.gate.known().worker
		if turn[0].Is(manifest.RoleControlPlane) {
			need = goingOn // it began with the others
		}
		if !w.gate.resumed[turn[0].Name] {
			if err := w.mayBegin(phase, turn, need); err != nil {
				return err
			}
		}
		begun, services := w.Now(), w.services(ctx, phase)
		if err := w.OnAll(turn, func(_ int, t *task.Host) error {
			return w.visit(ctx, phase, t, d, services)
		}); err != nil {
			return err
		}
		if err := w.passed(ctx, phase, turn, w.Now().Sub(begun)); err != nil {
			return err
		}
	}
	return nil
}

// isCanary reports whether a turn is that of a worker that is the canary. A control plane is looked at with its API
// server, in each run.
func (w *nodeWalk) isCanary(turn []*task.Host) bool {
	return len(turn) == 1 && turn[0].Name == w.how.Canary && !turn[0].Is(manifest.RoleControlPlane)
}

// absent returns the nodes that need a visit, after the others have arrived.
func (w *nodeWalk) absent(ctx context.Context, phase string, turn []*task.Host, d direction) ([]*task.Host, error) {
	there := make([]bool, len(turn))
	err := w.OnAll(turn, func(i int, t *task.Host) (err error) {
		if there[i], err = d.isThere(task.InTask(ctx, phase+"/node"), t); err != nil {
			return &engine.TaskError{Phase: phase, Task: "node", Host: t.Name, Err: err}
		}
		if there[i] {
			return d.arrive(ctx, phase, t)
		}
		return nil
	})
	var list []*task.Host
	for i, t := range turn {
		if !there[i] {
			list = append(list, t)
		}
	}
	return list, err
}

// turns returns groups of nodes that are drained at the same time, one group after the other. Nodes that an earlier
// run has left cordoned come first: until they are back, pods of others may have nowhere to go.
func (w *nodeWalk) turns(ctx context.Context, phase string, d direction) ([][]*task.Host, error) {
	states, err := w.statesIn(ctx, phase)
	if err != nil {
		return nil, err
	}
	isCordoned := func(t *task.Host) bool { return inUpgrade(states, t) }
	var first, others [][]*task.Host
	for _, group := range d.groups(states) {
		first = append(first, slices.DeleteFunc(slices.Clone(group), func(t *task.Host) bool { return !isCordoned(t) }))
		others = append(others, slices.DeleteFunc(slices.Clone(group), isCordoned))
	}
	return slices.DeleteFunc(slices.Concat(first, others), func(group []*task.Host) bool { return len(group) == 0 }),
		nil
}

// statesIn returns the nodes as the API has them in a phase.
func (w *nodeWalk) statesIn(ctx context.Context, phase string) ([]corev1.Node, error) {
	states, err := w.states(task.InTask(ctx, phase+"/node"))
	if err != nil {
		return nil, &engine.TaskError{Phase: phase, Task: "node", Host: w.FirstControlPlane().Name, Err: err}
	}
	return states, nil
}

// inUpgrade reports whether a node is marked as one in the middle of an upgrade.
func inUpgrade(states []corev1.Node, t *task.Host) bool {
	n := kube.FindNode(states, t.Name)
	return n != nil && marks.InUpgrade(n)
}

// oneByOne returns a group for each host.
func oneByOne(hosts []*task.Host) [][]*task.Host { return slices.Collect(slices.Chunk(hosts, 1)) }

// visit brings a node to the run's release. services is called before anything is drained.
func (w *nodeWalk) visit(ctx context.Context, phase string, t *task.Host, d direction, services func() error) error {
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
