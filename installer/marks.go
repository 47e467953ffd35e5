package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	workerLabel       = "node-role.kubernetes.io/worker"
	controlPlaneTaint = "node-role.kubernetes.io/control-plane"
	// marksManager owns, among the fields of a node, the labels and annotations of the inventory. What it owned and does not
	// apply any more goes, and what others own stays:
	// https://kubernetes.io/docs/reference/using-api/server-side-apply/
	marksManager = "kkbundle"
	// taintsAnnotation remembers which taints are ours: their list has one owner only.
	taintsAnnotation = "kkbundle.io/taints"
)

// labelTask gives nodes the labels, annotations and taints of the inventory, and workers a label that kubectl shows them by.
func labelTask() Task {
	return Task{
		Name:  "node-labels",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err
			}
			left, err := t.unmarked(ctx)
			for _, n := range left {
				because(ctx, "the marks of %s differ", n.host.Name)
			}
			return len(left) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			left, err := t.unmarked(ctx)
			if err != nil {
				return err
			}
			for _, n := range left {
				if err := t.mark(ctx, n.host, n.node); err != nil {
					return fmt.Errorf("node %s: %w", n.host.Name, err)
				}
			}
			return nil
		},
	}
}

// A markedNode is what is read of a node to tell whether its marks are as they shall be.
type markedNode struct {
	Metadata struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		Managed     []struct {
			Manager   string `json:"manager"`
			Operation string `json:"operation"`
			Fields    struct {
				Metadata struct {
					Labels      map[string]any `json:"f:labels"`
					Annotations map[string]any `json:"f:annotations"`
				} `json:"f:metadata"`
			} `json:"fieldsV1"`
		} `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Taints []struct {
			Key    string `json:"key"`
			Value  string `json:"value"`
			Effect string `json:"effect"`
		} `json:"taints"`
	} `json:"spec"`
}

// A hostNode is a host with its node.
type hostNode struct {
	host *Target
	node markedNode
}

// unmarked returns the nodes of this run's hosts that are not marked as they shall be.
func (t *Target) unmarked(ctx context.Context) ([]hostNode, error) {
	var list struct {
		Items []markedNode `json:"items"`
	}
	if err := t.kubectlJSON(ctx, &list, "get", "nodes", "--show-managed-fields"); err != nil {
		return nil, err
	}
	var left []hostNode
	for _, h := range t.run.withRole(manifest.RoleCluster) {
		i := slices.IndexFunc(list.Items, func(n markedNode) bool { return n.Metadata.Name == h.Name })
		if i >= 0 && !marksOf(h.Host).on(list.Items[i]) {
			left = append(left, hostNode{h, list.Items[i]})
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
		m.labels[workerLabel] = h.Labels[workerLabel]
	}
	if len(h.Taints) > 0 {
		m.annotations[taintsAnnotation] = taintList(h.Taints)
	}
	return m
}

func taintID(key, effect string) string { return key + ":" + effect }

// taintList writes which taints are ours, as the annotation has them.
func taintList(taints []manifest.Taint) string {
	var list []string
	for _, t := range taints {
		list = append(list, taintID(t.Key, t.Effect))
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// on tells whether a node has these marks, and none that was ours before.
func (m marks) on(n markedNode) bool {
	if !contains(n.Metadata.Labels, m.labels) || !contains(n.Metadata.Annotations, m.annotations) || len(m.stale(n)) > 0 {
		return false
	}
	for _, owner := range n.Metadata.Managed {
		if owner.Manager != marksManager || owner.Operation != "Apply" {
			continue
		}
		if !sameFields(owner.Fields.Metadata.Labels, m.labels) || !sameFields(owner.Fields.Metadata.Annotations, m.annotations) {
			return false
		}
	}
	return !slices.ContainsFunc(m.taints, func(t manifest.Taint) bool { return !n.hasTaint(t) })
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if have, ok := all[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// sameFields compares owned fields, f:NAME each, with the names that shall be owned.
func sameFields(owned map[string]any, want map[string]string) bool {
	n := 0
	for field := range owned {
		name, ok := strings.CutPrefix(field, "f:")
		if !ok {
			continue // "." stands for the mapping itself
		}
		if _, ok := want[name]; !ok {
			return false
		}
		n++
	}
	return n == len(want)
}

func (n markedNode) hasTaint(t manifest.Taint) bool {
	for _, one := range n.Spec.Taints {
		if one.Key == t.Key && one.Value == t.Value && one.Effect == t.Effect {
			return true
		}
	}
	return false
}

// stale returns the node's taints, as key:Effect, that were ours and are not wanted any more.
func (m marks) stale(n markedNode) []string {
	ours := strings.Split(n.Metadata.Annotations[taintsAnnotation], ",")
	var list []string
	for _, one := range n.Spec.Taints {
		id := taintID(one.Key, one.Effect)
		wanted := slices.ContainsFunc(m.taints, func(t manifest.Taint) bool { return taintID(t.Key, t.Effect) == id })
		if slices.Contains(ours, id) && !wanted {
			list = append(list, id)
		}
	}
	return list
}

// mark makes a node's marks what they shall be. The annotation names taints before they are there and until they are
// gone, so that an interrupted run leaves none that nobody remembers.
func (t *Target) mark(ctx context.Context, h *Target, n markedNode) error {
	m := marksOf(h.Host)
	stale := m.stale(n)
	before := m.withTaints(stale)
	if err := t.applyMarks(ctx, h.Name, before); err != nil {
		return err
	}
	args := []string{"taint", "node", h.Name, "--overwrite"}
	for _, taint := range m.taints {
		if !n.hasTaint(taint) {
			args = append(args, taint.String())
		}
	}
	for _, id := range stale {
		args = append(args, id+"-")
	}
	const none = 4
	if len(args) > none {
		if _, err := t.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return t.applyMarks(ctx, h.Name, m)
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

func (t *Target) applyMarks(ctx context.Context, node string, m marks) error {
	data, err := json.Marshal(document{
		"apiVersion": "v1", "kind": "Node",
		"metadata": document{"name": node, "labels": m.labels, "annotations": m.annotations},
	})
	if err != nil {
		return fmt.Errorf("labels of node %s: %w", node, err)
	}
	_, err = t.kubectlWith(ctx, bytes.NewReader(data), "apply", "--server-side", "--force-conflicts", "--field-manager="+marksManager, "--filename=-")
	return err
}
