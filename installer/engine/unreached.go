package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// An UnreachedError means that nodes or the registry of a running cluster were not reached.
type UnreachedError struct {
	Cluster  string
	Nodes    []string // of the cluster
	Registry []string // hosts of a registry without a second host
	Others   []string // reached, if the operation has --limit
	Spared   []string // unreached workers without another role, if the operation has --without
	Err      error    // the reasons
}

// Error returns the reasons and the hosts' roles in the cluster.
func (e *UnreachedError) Error() string {
	text := e.Err.Error()
	if len(e.Nodes) > 0 {
		text += fmt.Sprintf("\nnot reached, and nodes of cluster %s, which is running: %s", e.Cluster,
			strings.Join(e.Nodes, ", "))
	}
	if len(e.Registry) > 0 {
		text += fmt.Sprintf("\nnot reached, and the registry that the nodes of cluster %s pull from: %s", e.Cluster,
			strings.Join(e.Registry, ", "))
	}
	return text
}

// Unwrap returns the reasons.
func (e *UnreachedError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *UnreachedError) Hint() string {
	text := "bring them back and run again"
	if len(e.Registry) > 0 {
		text += "; if " + strings.Join(e.Registry, ", ") +
			" will never come back, name another host under image_registry, and install fills it from the bundle"
	}
	if gone := slices.DeleteFunc(slices.Clone(e.Nodes),
		func(name string) bool { return slices.Contains(e.Registry, name) }); len(gone) > 0 {
		text += "; nodes that will never come back: kkbundle nodes delete --unreachable " + strings.Join(gone, " ") +
			", and remove them from the inventory"
	}
	if len(e.Spared) > 0 && len(e.Spared) == len(e.Nodes) && len(e.Registry) == 0 {
		text += "; to leave them as they are until then: --without " + strings.Join(e.Spared, ",")
	}
	const named = 8 // names that fit into a line
	switch {
	case len(e.Registry) > 0 || len(e.Others) == 0:
	case len(e.Others) > named:
		text += "; meanwhile, --limit works on the others"
	default:
		text += "; meanwhile, --limit " + strings.Join(e.Others, ",") + " works on the others"
	}
	return text
}

// explainUnreached adds the roles of unreached hosts in the cluster to their error, if the cluster answers.
func (r *Run) explainUnreached(ctx context.Context, lost error) error {
	if !r.Operation.lead || r.Scope.SkipUnreachable || ctx.Err() != nil {
		return lost
	}
	ctx, cancel := task.WithTimeout(task.InTask(ctx, "connect"), task.LookTimeout)
	defer cancel()
	if r.FindLead(ctx) != nil {
		return lost
	}
	lead := r.FirstControlPlane()
	if lead.Conn == nil || lead.Err != nil {
		return lost
	}
	if member, err := member.IsMember(ctx, lead); err != nil || !member {
		return lost
	}
	nodes, err := lead.Kube().Nodes(ctx)
	if err != nil {
		return lost
	}
	e := &UnreachedError{Cluster: r.Cluster.Metadata.Name, Err: lost}
	for _, t := range r.Hosts {
		isNode := kube.FindNode(nodes, t.Name) != nil
		switch {
		case t.Err == nil && t.Conn != nil && r.Operation.limitable:
			e.Others = append(e.Others, t.Name)
		case t.Err == nil: // reached, or not tried
		default:
			if isNode {
				e.Nodes = append(e.Nodes, t.Name)
			}
			if r.Operation.without && isNode && !t.Is(manifest.RoleControlPlane) && !t.Is(manifest.RoleEtcd) &&
				!r.IsRegistry(t) {
				e.Spared = append(e.Spared, t.Name)
			}
			if r.IsRegistry(t) && !r.HasRegistryVIP() {
				e.Registry = append(e.Registry, t.Name)
			}
		}
	}
	if len(e.Nodes)+len(e.Registry) == 0 {
		return lost
	}
	return e
}
