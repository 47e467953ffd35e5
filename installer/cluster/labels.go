package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// WorkerLabel marks workers, so that kubectl shows the role.
const WorkerLabel = "node-role.kubernetes.io/worker"

// LabelTask gives nodes the labels, annotations and taints of the inventory, and workers the WorkerLabel.
func LabelTask() task.Task {
	return task.Task{
		Name:  "node-labels",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			left, err := outdatedNodes(ctx, t)
			for _, n := range left {
				task.Because(ctx, "labels, annotations or taints of node %s differ", n.host.Name)
			}
			return len(left) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			left, err := outdatedNodes(ctx, t)
			if err != nil {
				return err
			}
			for _, n := range left {
				if err := updateNode(ctx, t, n.host, n.node); err != nil {
					return fmt.Errorf("node %s: %w", n.host.Name, err)
				}
			}
			return nil
		},
	}
}

// A hostNode is a host and its node.
type hostNode struct {
	host *task.Host
	node *corev1.Node
}

// outdatedNodes returns the nodes of this run's hosts whose labels, annotations or taints differ from the inventory.
func outdatedNodes(ctx context.Context, t *task.Host) ([]hostNode, error) {
	nodes, err := t.Kube().Nodes(ctx, "--show-managed-fields")
	if err != nil {
		return nil, err
	}
	var left []hostNode
	for _, h := range t.Site.WithRole(manifest.RoleCluster) {
		if n := kube.FindNode(nodes, h.Name); n != nil && !nodeMetaOf(h.Host).matches(n) {
			left = append(left, hostNode{h, n})
		}
	}
	return left, nil
}

// nodeMeta is a node's labels, annotations and taints from the inventory.
type nodeMeta struct {
	labels, annotations map[string]string
	taints              []manifest.Taint
}

func nodeMetaOf(h manifest.Host) nodeMeta {
	m := nodeMeta{labels: map[string]string{}, annotations: map[string]string{}, taints: h.Taints}
	maps.Copy(m.labels, h.Labels)
	maps.Copy(m.annotations, h.Annotations)
	if h.Is(manifest.RoleWorker) {
		m.labels[WorkerLabel] = h.Labels[WorkerLabel]
	}
	if len(h.Taints) > 0 {
		m.annotations[marks.TaintsAnnotation] = taintList(h.Taints)
	}
	return m
}

// TaintID returns the identity of a taint, as kubectl takes it.
func TaintID(key, effect string) string { return key + ":" + effect }

// taintList returns the value of marks.TaintsAnnotation.
func taintList(taints []manifest.Taint) string {
	var list []string
	for _, t := range taints {
		list = append(list, TaintID(t.Key, t.Effect))
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// matches reports whether a node has exactly this metadata, as far as kkbundle owns it.
func (m nodeMeta) matches(n *corev1.Node) bool {
	if !contains(n.Labels, m.labels) || !contains(n.Annotations, m.annotations) || len(m.staleTaints(n)) > 0 {
		return false
	}
	return kube.OwnsExactly(n, kube.FieldManager, m.labels, m.annotations) && len(m.missingTaints(n)) == 0
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if have, ok := all[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// missingTaints returns the taints that the node lacks, as kubectl takes them.
func (m nodeMeta) missingTaints(n *corev1.Node) []string {
	var list []string
	for _, t := range m.taints {
		if !kube.HasTaint(n, t.Key, t.Value, corev1.TaintEffect(t.Effect)) {
			list = append(list, t.String())
		}
	}
	return list
}

// staleTaints returns the IDs of the node's taints that kkbundle added and the inventory no longer has.
func (m nodeMeta) staleTaints(n *corev1.Node) []string {
	ours := strings.Split(n.Annotations[marks.TaintsAnnotation], ",")
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

// updateNode applies the host's metadata to its node. The annotation lists a taint before it is added and until it is
// removed, so that an interrupted run loses track of none.
func updateNode(ctx context.Context, t *task.Host, h *task.Host, n *corev1.Node) error {
	m := nodeMetaOf(h.Host)
	stale := m.staleTaints(n)
	before := m.withTaints(stale)
	if err := t.Kube().ApplyNode(ctx, kube.FieldManager, h.Name, before.labels, before.annotations); err != nil {
		return err
	}
	changes := m.missingTaints(n)
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
	return t.Kube().ApplyNode(ctx, kube.FieldManager, h.Name, m.labels, m.annotations)
}

// withTaints returns the metadata with these taints added to the annotation.
func (m nodeMeta) withTaints(ids []string) nodeMeta {
	if len(ids) == 0 {
		return m
	}
	all := append(slices.Clone(ids), strings.Split(m.annotations[marks.TaintsAnnotation], ",")...)
	all = slices.DeleteFunc(all, func(id string) bool { return id == "" })
	slices.Sort(all)
	m.annotations = maps.Clone(m.annotations)
	m.annotations[marks.TaintsAnnotation] = strings.Join(all, ",")
	return m
}
