package begin

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// HasOtherVital reports whether vital settings besides the endpoint differ.
func HasOtherVital(s *task.Site, differing []member.FixedSetting) bool {
	_, some := member.VitalText(member.Identity(s), slices.DeleteFunc(slices.Clone(differing),
		member.FixedSetting.IsEndpoint))
	return some
}

// A NoClusterError means that a command needs a cluster, and none exists.
type NoClusterError struct{ Reason string }

// Error returns the reason.
func (e *NoClusterError) Error() string { return e.Reason }

// Hint returns the remedy.
func (e *NoClusterError) Hint() string {
	return "kkbundle install makes one of all hosts of the inventory; if there is one already, this is not its inventory"
}

// NoCluster returns an error if no cluster has begun and nothing else went wrong.
func NoCluster(begun bool, err error) error {
	if begun || err != nil {
		return nil
	}
	return &NoClusterError{Reason: "there is no cluster yet"}
}

// NodeOf returns the name of the node with the host's address, "" if there is none.
func NodeOf(t *task.Host, nodes []corev1.Node) string {
	for _, n := range nodes {
		if kube.HasAddress(&n, t.IP.String()) {
			return n.Name
		}
	}
	return ""
}

// CheckNames refuses, before anything is changed, hosts that are nodes under other names than in the inventory: renamed
// hosts, or swapped addresses. Without an API server nothing is checked, because an installation may repair it.
func CheckNames(ctx context.Context, r *engine.Run) error {
	first := r.FirstControlPlane()
	if first.Conn == nil || first.Err != nil {
		return nil
	}
	if begun, err := member.IsMember(ctx, first); err != nil || !begun {
		return err
	}
	nodes, err := first.Kube().Nodes(ctx)
	if err != nil {
		return context.Cause(ctx)
	}
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		name := NodeOf(t, nodes)
		if name == "" || name == t.Name || t.Err != nil {
			return nil
		}
		if member, err := member.IsMember(ctx, t); err != nil || !member {
			return err
		}
		return &NamelessError{Host: t.Name, Node: name}
	})
}

// A NamelessError is a host that joined the cluster under another name, or whose node was deleted by hand.
type NamelessError struct {
	Host string
	// Node is the name of the node with the host's address, "" if there is none.
	Node string
}

// Error names the host and its node.
func (e *NamelessError) Error() string {
	if e.Node != "" {
		return fmt.Sprintf("%s of the inventory is the node %s of the cluster: it was renamed", e.Host, e.Node)
	}
	return fmt.Sprintf("%s has joined the cluster, but the node was deleted there by hand", e.Host)
}

// Hint returns the remedy.
func (e *NamelessError) Hint() string {
	if e.Node != "" {
		return "give the host its name back; to rename a node, delete it (kkbundle nodes delete " + e.Node +
			") and add it"
	}
	return "kkbundle reset --limit " + e.Host + " removes the old installation; then add the host"
}

// Refuses marks an error that ends a run before any change.
func (*NamelessError) Refuses() {}

// RotatedOn returns a control plane with files of a rotation, nil if there is none.
func RotatedOn(ctx context.Context, r *engine.Run) (*task.Host, error) {
	if r.Cluster.Kubernetes.Distribution != manifest.DistributionKubernetes {
		return nil, nil
	}
	for _, t := range r.Connected(manifest.RoleControlPlane) {
		if t.Err != nil {
			continue
		}
		if there, err := t.Test(ctx, "test", "-e", marks.RotationDir); err != nil || there {
			return t, err
		}
	}
	return nil, nil
}

// RotationRefusal is the error of commands that would rewrite files of a rotation in progress.
func RotationRefusal(t *task.Host) error {
	return &kubeadm.RotationError{
		Reason: fmt.Sprintf("the authorities of the cluster are being replaced (%s exists on %s)", marks.RotationDir,
			t.Name),
		Advice: "complete that with kkbundle certs rotate-ca and then --finish, or undo it with --rollback",
	}
}
