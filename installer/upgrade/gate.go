package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A PausedError is an upgrade that ended between nodes, as its options say. Nothing has failed.
type PausedError struct {
	// To is the version of the upgrade, Reason why it ended, Left the nodes that are not there yet. Middle are those of
	// them that an earlier run left unschedulable.
	To, Reason   string
	Left, Middle []string
	// Advice is how to go on.
	Advice string
}

// Error names the reason and the nodes that are left.
func (e *PausedError) Error() string {
	middle := ""
	if len(e.Middle) > 0 {
		middle = "; left in the middle by an earlier run, and unschedulable: " + strings.Join(e.Middle, ", ")
	}
	return fmt.Sprintf("the upgrade to %s is not complete: %s; left: %s%s", e.To, e.Reason, strings.Join(e.Left, ", "),
		middle)
}

// Pauses marks an error that ends a run as its options say.
func (*PausedError) Pauses() {}

// Hint returns how to go on.
func (e *PausedError) Hint() string { return e.Advice }

// A gate is the state of the decision whether further nodes may begin. Its zero value lets all nodes pass, as a
// rollback does.
type gate struct {
	// began is the begin of Options.Window.
	began time.Time
	// before has the times of the last upgrade that knew them, own those of this run.
	before, own times
	// resumed are nodes that an earlier run left in the middle of a step: their times say nothing, and they are
	// completed in any case.
	resumed map[string]bool
	// planes are the control planes of a step that began together, and when.
	planes      int
	planesBegan time.Time
	// after is the phase that the canary passed in, and that ends the run.
	after string
	// nothing is a phase in which there is nothing to do for the canary, and that does not end the run.
	nothing string
}

// times are how long nodes take: a control plane with its API server, and a worker. Rest is all else of an upgrade.
// 0 is unknown.
type times struct{ plane, worker, rest time.Duration }

// timesOf returns the times of an upgrade's nodes. What it did in part, such as the kubelet of a control plane whose
// API server an earlier run had upgraded, says nothing.
func timesOf(last report.Run, isPlane func(host string) bool) times {
	type hostPhase struct{ host, phase string }
	took, kubelets, servers := map[hostPhase]time.Duration{}, map[hostPhase]bool{}, map[hostPhase]bool{}
	for _, t := range last.Tasks {
		if !strings.HasPrefix(t.Phase, upgradePhase) || t.Host == "" {
			continue
		}
		k := hostPhase{t.Host, t.Phase}
		took[k] += time.Duration(t.Duration)
		changed := t.State == string(task.Changed)
		kubelets[k] = kubelets[k] || changed && t.Task == "kubelet"
		servers[k] = servers[k] || changed && t.Task == "control-plane"
	}
	var sum, count [2]time.Duration
	var inSteps time.Duration
	for k, d := range took {
		inSteps += d
		i := 0
		if isPlane(k.host) {
			i = 1
		}
		if kubelets[k] && servers[k] == isPlane(k.host) {
			sum[i], count[i] = sum[i]+d, count[i]+1
		}
	}
	out := times{rest: max(0, time.Duration(last.Times.Total)-inSteps)}
	if count[0] > 0 {
		out.worker = sum[0] / count[0]
	}
	if count[1] > 0 {
		out.plane = sum[1] / count[1]
	}
	return out
}

// isUnknown reports whether no time of a node is known.
func (t times) isUnknown() bool { return t.plane == 0 && t.worker == 0 }

// knows reports whether each kind of node is known that another one knows.
func (t times) knows(other times) bool {
	return (t.plane > 0 || other.plane == 0) && (t.worker > 0 || other.worker == 0)
}

// complete takes the time of the other kind of node where one is unknown.
func (t times) complete() times {
	if t.plane == 0 {
		t.plane = t.worker
	}
	if t.worker == 0 {
		t.worker = t.plane
	}
	return t
}

// known prefers the longest time of this run's workers: other nodes may have been slower, or nothing staged.
func (g *gate) known() times {
	t := g.before
	t.plane = max(t.plane, g.own.plane)
	if g.own.worker > 0 {
		t.worker = g.own.worker
	}
	return t.complete()
}

// goingOn is the need of what has begun: it is completed, whatever the window.
const goingOn time.Duration = -1

// mayBegin returns nil if nodes may begin together, and otherwise the *PausedError that ends the run before them. It
// is the only place where an upgrade decides this. need is the time that they take: 0 if unknown.
func (w *nodeWalk) mayBegin(phase string, nodes []*task.Host, need time.Duration) error {
	own := len(nodes) == 1 && nodes[0].Name == w.how.Canary && w.gate.after == phase
	if w.gate.after != "" && !own {
		return &PausedError{
			Reason: w.how.Canary + " has taken the step " + strings.TrimPrefix(w.gate.after, upgradePhase) +
				", and --canary ends the run after it",
			Advice: "look at " + w.how.Canary + ", and run the same command without --canary for the other nodes",
		}
	}
	if w.how.Window == 0 || need == goingOn {
		return nil
	}
	left := w.how.Window - w.Now().Sub(w.gate.began)
	if left > 0 && need <= left {
		return nil
	}
	reason := fmt.Sprintf("the window of %s is over", w.how.Window)
	if left > 0 {
		reason = fmt.Sprintf("the window of %s ends in %s, and the next nodes (%s) take about %s", w.how.Window,
			left.Round(time.Second), someNames(begin.HostNamesOf(nodes)), need.Round(time.Second))
	}
	return &PausedError{Reason: reason, Advice: "run the same command in the next window: it goes on there"}
}

// planesMayBegin asks for all control planes of a step together: they are not left with API servers or kubelets of
// two releases.
func (w *nodeWalk) planesMayBegin(ctx context.Context, phase string, d direction) error {
	var planes []*task.Host
	for _, t := range d.planes {
		there, err := d.isThere(task.InTask(ctx, phase+"/node"), t)
		if err != nil {
			return &engine.TaskError{Phase: phase, Task: "node", Host: t.Name, Err: err}
		}
		if !there {
			planes = append(planes, t)
		}
	}
	if len(planes) == 0 {
		return nil
	}
	need := w.gate.known().plane * time.Duration(len(planes))
	if slices.ContainsFunc(planes, func(t *task.Host) bool { return w.gate.resumed[t.Name] }) {
		need = goingOn
	}
	if err := w.mayBegin(phase, planes, need); err != nil {
		return err
	}
	w.gate.planes, w.gate.planesBegan = len(planes), w.Now()
	return nil
}

// passed notes that nodes are through, and has them looked at before others begin. took is the time of a batch of
// workers.
func (w *nodeWalk) passed(ctx context.Context, phase string, nodes []*task.Host, took time.Duration) error {
	switch g := &w.gate; {
	case !nodes[0].Is(manifest.RoleControlPlane):
		if !g.resumed[nodes[0].Name] {
			g.own.worker = max(g.own.worker, took)
		}
	case g.planes > 0:
		g.own.plane = max(g.own.plane, w.Now().Sub(g.planesBegan)/time.Duration(g.planes))
	}
	isCanary := func(t *task.Host) bool { return t.Name == w.how.Canary }
	if w.how.Check == nil {
		if phase != w.gate.nothing && slices.ContainsFunc(nodes, isCanary) {
			w.gate.after = phase
		}
		return nil
	}
	names := begin.HostNamesOf(nodes)
	check := task.Task{Name: "check", Where: task.Here, Do: func(ctx context.Context, _ *task.Host) error {
		return w.how.Check(ctx, names)
	}}
	_, errs := w.Group(ctx, phase, []task.Task{check})
	return errors.Join(errs...)
}

// pausedAt adds to the error of an upgrade that ended between nodes what is left, after the steps that are done.
func (u *upgrade) pausedAt(ctx context.Context, e *PausedError, p Plan, version string) error {
	e.To = p.To
	if version != p.To && u.how.Canary != "" {
		e.Advice += "; again with it, the run ends after " + u.how.Canary + " has taken the next step"
	}
	nodes := u.nodes()
	found := make([]bool, len(nodes))
	if version == p.To {
		// A node that cannot be asked is not there.
		_ = u.OnAll(nodes, func(i int, t *task.Host) (err error) {
			found[i], err = isCurrent(task.InTask(ctx, "state"), t)
			return err
		})
	}
	states, _ := u.states(task.InTask(ctx, "state")) // without an answer no node is known to be in the middle
	for i, t := range nodes {
		if !found[i] {
			e.Left = append(e.Left, t.Name)
		}
		if inUpgrade(states, t) {
			e.Middle = append(e.Middle, t.Name)
		}
	}
	return e
}

// A Fit names the nodes of a step that a window has time for.
type Fit struct {
	Version string
	Nodes   []string
}

// fits returns what the window has time for, as far as times of nodes are known. Without time for the first nodes the
// upgrade is refused.
func (u *upgrade) fits(p Plan) ([]Fit, error) {
	known := u.gate.known()
	if u.how.Window == 0 || known.isUnknown() {
		return nil, nil
	}
	left := u.how.Window
	var list []Fit
	for _, version := range p.Steps {
		fit := Fit{Version: version}
		planes, batches := p.units(p.Steps[0] == version)
		for i, unit := range slices.Concat(planes, batches) {
			need := known.worker
			if i < len(planes) {
				need = known.plane * time.Duration(len(unit))
			}
			names := namesOf(unit)
			if left -= need; left >= 0 {
				fit.Nodes = append(fit.Nodes, names...)
				continue
			}
			if len(list) == 0 && len(fit.Nodes) == 0 && !p.isBegun() {
				return nil, &RefusedError{
					p.Cluster, p.To, fmt.Sprintf(
						"the window of %s is too short for the first nodes (%s): they take about %s", u.how.Window,
						someNames(names), need.Round(time.Second)),
					"give a longer --window, or upgrade without one",
				}
			}
			return append(list, fit), nil
		}
		list = append(list, fit)
	}
	return list, nil
}

// isBegun reports whether an earlier run left a node in the middle, which is completed whatever the window.
func (p Plan) isBegun() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.mark != "" && !n.Left })
}

// units returns the nodes of a step that begin together: the control planes, and batches of workers. In a later step
// than the first, nodes come again that had the release of the one before.
func (p Plan) units(first bool) (planes, batches [][]Node) {
	var workers, servers []Node
	for _, n := range p.Nodes {
		switch {
		case n.Left || n.Later || first && n.Current:
		case n.ControlPlane:
			servers = append(servers, n)
		default:
			workers = append(workers, n)
		}
	}
	if len(servers) > 0 {
		planes = [][]Node{servers}
	}
	return planes, batchesOf(workers, func(n Node) string { return n.Zone }, p.Batch)
}

func namesOf(nodes []Node) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

// batchesOf divides a list in its order, without a batch of two zones.
func batchesOf[T any](list []T, zone func(T) string, most int) [][]T {
	var zones []string
	in := map[string][]T{}
	for _, one := range list {
		z := zone(one)
		if _, known := in[z]; !known {
			zones = append(zones, z)
		}
		in[z] = append(in[z], one)
	}
	var batches [][]T
	for _, z := range zones {
		batches = slices.AppendSeq(batches, slices.Chunk(in[z], max(1, most)))
	}
	return batches
}

// estimate is the time of an upgrade by the times of another one: control planes one after the other, workers in
// batches, and all other phases as they were.
func estimate(t times, p Plan) time.Duration {
	total := t.rest
	planes, batches := p.units(true)
	for _, unit := range planes {
		total += t.plane * time.Duration(len(unit)*len(p.Steps))
	}
	total += t.worker * time.Duration(len(batches)*len(p.Steps))
	return total.Round(time.Second)
}
