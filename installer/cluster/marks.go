package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const WorkerLabel = "node-role.kubernetes.io/worker"

// taintsAnnotation remembers which taints are ours: their list has one owner only.
const taintsAnnotation = "kkbundle.io/taints"

// LabelTask gives nodes the labels, annotations and taints of the inventory, and workers a label that kubectl shows them by.
func LabelTask() task.Task {
	return task.Task{
		Name:  "node-labels",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			left, err := unmarked(ctx, t)
			for _, n := range left {
				task.Because(ctx, "the marks of %s differ", n.host.Name)
			}
			return len(left) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			left, err := unmarked(ctx, t)
			if err != nil {
				return err
			}
			for _, n := range left {
				if err := mark(ctx, t, n.host, n.node); err != nil {
					return fmt.Errorf("node %s: %w", n.host.Name, err)
				}
			}
			return nil
		},
	}
}

// A hostNode is a host with its node.
type hostNode struct {
	host *task.Host
	node *corev1.Node
}

// unmarked returns the nodes of this run's hosts that are not marked as they shall be.
func unmarked(ctx context.Context, t *task.Host) ([]hostNode, error) {
	nodes, err := t.Kube().Nodes(ctx, "--show-managed-fields")
	if err != nil {
		return nil, err
	}
	var left []hostNode
	for _, h := range t.Site.WithRole(manifest.RoleCluster) {
		if n := kube.FindNode(nodes, h.Name); n != nil && !marksOf(h.Host).on(n) {
			left = append(left, hostNode{h, n})
		}
	}
	return left, nil
}

// marks are what a node has of the inventory.
type marks struct {
	labels, annotations map[string]string
	taints              []manifest.Taint
}

func marksOf(h manifest.Host) marks {
	m := marks{labels: map[string]string{}, annotations: map[string]string{}, taints: h.Taints}
	maps.Copy(m.labels, h.Labels)
	maps.Copy(m.annotations, h.Annotations)
	if h.Is(manifest.RoleWorker) {
		m.labels[WorkerLabel] = h.Labels[WorkerLabel]
	}
	if len(h.Taints) > 0 {
		m.annotations[taintsAnnotation] = taintList(h.Taints)
	}
	return m
}

func TaintID(key, effect string) string { return key + ":" + effect }

// taintList writes which taints are ours, as the annotation has them.
func taintList(taints []manifest.Taint) string {
	var list []string
	for _, t := range taints {
		list = append(list, TaintID(t.Key, t.Effect))
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// on tells whether a node has these marks, and none that was ours before.
func (m marks) on(n *corev1.Node) bool {
	if !contains(n.Labels, m.labels) || !contains(n.Annotations, m.annotations) || len(m.stale(n)) > 0 {
		return false
	}
	return kube.OwnsExactly(n, kube.MarksManager, m.labels, m.annotations) && len(m.lacking(n)) == 0
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if have, ok := all[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// lacking returns the taints that the node does not have, as kubectl takes them.
func (m marks) lacking(n *corev1.Node) []string {
	var list []string
	for _, t := range m.taints {
		if !kube.HasTaint(n, t.Key, t.Value, corev1.TaintEffect(t.Effect)) {
			list = append(list, t.String())
		}
	}
	return list
}

// stale returns the node's taints, as key:Effect, that were ours and are not wanted any more.
func (m marks) stale(n *corev1.Node) []string {
	ours := strings.Split(n.Annotations[taintsAnnotation], ",")
	var list []string
	for _, one := range n.Spec.Taints {
		id := TaintID(one.Key, string(one.Effect))
		wanted := slices.ContainsFunc(m.taints, func(t manifest.Taint) bool { return TaintID(t.Key, t.Effect) == id })
		if slices.Contains(ours, id) && !wanted {
			list = append(list, id)
		}
	}
	return list
}

// mark makes a node's marks what they shall be. The annotation names taints before they are there and until they are
// gone, so that an interrupted run leaves none that nobody remembers.
func mark(ctx context.Context, t *task.Host, h *task.Host, n *corev1.Node) error {
	m := marksOf(h.Host)
	stale := m.stale(n)
	before := m.withTaints(stale)
	if err := t.Kube().ApplyNode(ctx, kube.MarksManager, h.Name, before.labels, before.annotations); err != nil {
		return err
	}
	changes := m.lacking(n)
	for _, id := range stale {
		changes = append(changes, id+"-")
	}
	if len(changes) > 0 {
		if err := t.Kube().TaintNode(ctx, h.Name, changes...); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return t.Kube().ApplyNode(ctx, kube.MarksManager, h.Name, m.labels, m.annotations)
}

// withTaints returns the marks with an annotation that also has these taints.
func (m marks) withTaints(ids []string) marks {
	if len(ids) == 0 {
		return m
	}
	all := append(slices.Clone(ids), strings.Split(m.annotations[taintsAnnotation], ",")...)
	all = slices.DeleteFunc(all, func(id string) bool { return id == "" })
	slices.Sort(all)
	m.annotations = maps.Clone(m.annotations)
	m.annotations[taintsAnnotation] = strings.Join(all, ",")
	return m
}
