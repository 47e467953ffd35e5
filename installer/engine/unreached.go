package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A MissedError says that hosts were not reached that a cluster which is at work has to do with: what can be done about them is
// more than to bring them back.
type UnreachedError struct {
	Cluster string
	// Nodes are those that are nodes of the cluster, Registry those whose registry nobody stands in for.
	Nodes, Registry []string
	// Others were reached, if the operation can be limited to them.
	Others []string
	// Err is why the hosts were not reached.
	Err error
}

// Error repeats why, and says what the hosts are.
func (e *UnreachedError) Error() string {
	text := e.Err.Error()
	if len(e.Nodes) > 0 {
		text += fmt.Sprintf("\nnot reached, and nodes of cluster %s, which is at work: %s", e.Cluster, strings.Join(e.Nodes, ", "))
	}
	if len(e.Registry) > 0 {
		text += fmt.Sprintf("\nnot reached, and the registry that the nodes of cluster %s pull from: %s", e.Cluster, strings.Join(e.Registry, ", "))
	}
	return text
}

// Unwrap returns why the hosts were not reached.
func (e *UnreachedError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *UnreachedError) Hint() string {
	text := "bring them back and run again"
	if len(e.Registry) > 0 {
		text += "; if " + strings.Join(e.Registry, ", ") + " will never come back, name another host under image_registry, and install fills it from the bundle"
	}
	if gone := slices.DeleteFunc(slices.Clone(e.Nodes), func(name string) bool { return slices.Contains(e.Registry, name) }); len(gone) > 0 {
		text += "; nodes that will never come back: kkbundle nodes delete --unreachable " + strings.Join(gone, " ") + ", and take them out of the inventory"
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

// missed adds to the error of hosts that were not reached what is known of them in the cluster, if there is one that answers.
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
		case t.Err == nil: // it was, or the run did not try
		default:
			if isNode {
				e.Nodes = append(e.Nodes, t.Name)
			}
			if r.IsRegistry(t) && !r.IsPair() {
				e.Registry = append(e.Registry, t.Name)
			}
		}
	}
	if len(e.Nodes)+len(e.Registry) == 0 {
		return lost
	}
	return e
}
