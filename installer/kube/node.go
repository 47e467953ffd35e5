package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes lists the cluster's nodes. The argument --show-managed-fields adds the managers of their fields.
func (c Client) Nodes(ctx context.Context, args ...string) ([]corev1.Node, error) {
	var list corev1.NodeList
	err := c.Get(ctx, &list, append([]string{"nodes"}, args...)...)
	return list.Items, err
}

// FindNode returns the node with this name, nil if there is none.
func FindNode(nodes []corev1.Node, name string) *corev1.Node {
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &nodes[i]
}

// HasNode reports whether the cluster has a node with this name.
func (c Client) HasNode(ctx context.Context, name string) (bool, error) {
	out, err := c.Run(ctx, "get", "node", name, "--ignore-not-found", "--output=name")
	return len(strings.TrimSpace(string(out))) > 0, err
}

// DeleteNode deletes a node that may be deleted already.
func (c Client) DeleteNode(ctx context.Context, name string) error {
	return c.run(ctx, "delete", "node", name, "--ignore-not-found")
}

// notReported is the message of a condition that an object does not have.
const notReported = "no condition reported yet"

// NodeCondition returns a condition of a node, without a status if the node has not reported it.
func NodeCondition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{Type: kind, Message: notReported}
}

// IsNodeReady reports whether the node's Ready condition is true.
func IsNodeReady(n *corev1.Node) bool {
	return NodeCondition(n, corev1.NodeReady).Status == corev1.ConditionTrue
}

// HasAddress reports whether a is an internal address of the node.
func HasAddress(n *corev1.Node, a string) bool {
	return slices.Contains(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
}

// AnnotateNode sets an annotation, NAME=VALUE, or removes one, NAME-.
func (c Client) AnnotateNode(ctx context.Context, node, annotation string, args ...string) error {
	return c.run(ctx, append([]string{"annotate", "node", node, annotation}, args...)...)
}

// TaintNode sets taints, KEY=VALUE:EFFECT, and removes those that end in "-".
func (c Client) TaintNode(ctx context.Context, node string, taints ...string) error {
	return c.run(ctx, append([]string{"taint", "node", node, "--overwrite"}, taints...)...)
}

// HasTaint reports whether the node has the taint. Its timeAdded is ignored.
func HasTaint(n *corev1.Node, key, value string, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Value == value && t.Effect == effect
	})
}

// ApplyNode applies labels and annotations as manager. The API server removes those that manager no longer applies and
// keeps those of other managers: https://kubernetes.io/docs/reference/using-api/server-side-apply/
func (c Client) ApplyNode(ctx context.Context, manager, node string, labels, annotations map[string]string) error {
	data, err := json.Marshal(metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels, Annotations: annotations},
	})
	if err != nil {
		return fmt.Errorf("labels of node %s: %w", node, err)
	}
	return c.Apply(ctx, data, Apply{Manager: manager, Force: true})
}

// OwnsExactly reports whether manager has applied labels and annotations with exactly these names, or none at all.
func OwnsExactly(n *corev1.Node, manager string, labels, annotations map[string]string) bool {
	for _, owner := range n.ManagedFields {
		if owner.Manager != manager || owner.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels      map[string]any `json:"f:labels"`
				Annotations map[string]any `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if owner.FieldsV1 != nil && json.Unmarshal(owner.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		if !sameFields(fields.Metadata.Labels, labels) || !sameFields(fields.Metadata.Annotations, annotations) {
			return false
		}
	}
	return true
}

// sameFields compares owned fields, f:NAME each, with the wanted names.
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
