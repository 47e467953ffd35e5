package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Deletion says which nodes are deleted, and how.
type Deletion struct {
	Hosts []string
	// Unreachable says that the hosts are gone for good: only the cluster is told. They need not be in the inventory.
	Unreachable bool
	// DrainTimeout is how long pods may take to leave a node; 0 is the constant DrainTimeout.
	DrainTimeout time.Duration
	// DisableEviction deletes pods although a PodDisruptionBudget is against it.
	DisableEviction bool
}

// DeleteNodes takes nodes out of a cluster that goes on, one after the other: no new pods, the pods that are there leave, its
// member of etcd is removed, the node is deleted, and the host is reset. Then the others are told. What would leave the
// cluster without a control plane, etcd without a quorum or the hosts without their registry is refused, before
// anything is changed. agree is told what will be done, in sentences, and ends it with an error. An interrupted
// DeleteNodes is continued by the next one.
func DeleteNodes(ctx context.Context, o Options, d Deletion, agree func([]string) error) (Report, error) {
	r, err := newInstall(o, changing())
	if err != nil {
		return Report{}, err
	}
	r.scope.Changing, r.scope.Sparing, r.scope.Leaving = d.Hosts, true, true
	r.gone = d.Unreachable
	return r.start(ctx, func(ctx context.Context) error {
		going, err := r.leavers(inTask(ctx, "connect"), d)
		if err != nil {
			return err
		}
		if err := agree(r.deletions(going)); err != nil || r.DryRun {
			return err
		}
		going = r.only(going)
		for _, t := range going {
			if err := r.deleteNode(ctx, t, d); err != nil {
				return err
			}
		}
		r.targets = slices.DeleteFunc(r.targets, func(t *Target) bool {
			if !slices.Contains(going, t) {
				return false
			}
			if t.on != nil {
				_ = t.on.Close() // everything that was done has been answered
			}
			return true
		})
		r.renew(func(s *Site) { s.scope.Hosts, s.scope.Leaving = nil, false })
		return r.follow(ctx, Plan(r.cluster))
	})
}

// only goes on with a site whose scope are these hosts, and returns them as they are there.
func (r *run) only(going []*Target) []*Target {
	names := make([]string, len(going))
	for i, t := range going {
		names[i] = t.Name
	}
	r.renew(func(s *Site) { s.scope.Hosts = names })
	list := make([]*Target, len(going))
	for i, t := range going {
		if list[i] = r.target(t.Name); list[i] == nil { // it is not in the inventory
			t.run = r.Site
			list[i] = t
		}
	}
	return list
}

// A KeepError says why a node cannot be deleted.
type KeepError struct{ Host, Reason, Advice string }

// Error names the host and the reason.
func (e *KeepError) Error() string { return e.Host + " cannot be deleted: " + e.Reason }

// Hint says what to do about it.
func (e *KeepError) Hint() string { return e.Advice }

// leavers returns the hosts to delete, if the cluster can do without them.
func (r *run) leavers(ctx context.Context, d Deletion) ([]*Target, error) {
	var going []*Target
	for _, name := range d.Hosts {
		t := r.target(name)
		switch {
		case t == nil && !d.Unreachable:
			return nil, fmt.Errorf("there is no host %q in the inventory; a node that is gone is deleted with --unreachable", name)
		case t == nil:
			t = &Target{Host: manifest.Host{Name: name}, failure: errGone, run: r.Site}
		}
		going = append(going, t)
	}
	if err := r.leadWithout(ctx, going); err != nil {
		return nil, err
	}
	if err := r.checkMembers(ctx); err != nil {
		return nil, err
	}
	if begun, err := r.firstControlPlane().isMember(ctx); err != nil || !begun {
		return nil, errors.Join(err, noCluster(begun, err))
	}
	for _, t := range going {
		if err := r.mayGo(t); err != nil {
			return nil, err
		}
	}
	if err := r.areGone(ctx, going); err != nil {
		return nil, err
	}
	return going, r.quorumWithout(ctx, going)
}

// areGone refuses to take a host for gone whose kubelet still reports to the cluster: its pods would go on beside those that are
// made in their place. It refuses names, too, that neither the inventory nor the cluster has.
func (r *run) areGone(ctx context.Context, going []*Target) error {
	if !r.gone {
		return nil
	}
	nodes, err := r.firstControlPlane().kube().Nodes(ctx)
	if err != nil {
		return err
	}
	for _, t := range going {
		n := kube.FindNode(nodes, t.Name)
		switch {
		case n == nil && r.target(t.Name) == nil:
			if member, err := r.isInEtcd(ctx, t.Name); err != nil || !member {
				return errors.Join(err, &UnknownNodeError{t.Name})
			}
		case n != nil && kube.IsNodeReady(n):
			return &KeepError{
				t.Name, "it is not gone: the cluster has the node as Ready",
				"delete it without --unreachable, or switch it off; the cluster notices within a minute that a host is gone",
			}
		}
	}
	return nil
}

// An UnknownNodeError is a name that neither the inventory nor the cluster has.
type UnknownNodeError struct{ Name string }

// Error has the name.
func (e *UnknownNodeError) Error() string {
	return fmt.Sprintf("there is no host %q in the inventory, and no such node in the cluster", e.Name)
}

// Hint says what to do about it.
func (e *UnknownNodeError) Hint() string {
	return "kkbundle status lists the nodes; if this one was deleted already, kkbundle install brings the other hosts up to date"
}

// leadWithout finds a control plane that stays and speaks for the cluster.
func (r *run) leadWithout(ctx context.Context, going []*Target) error {
	if err := r.findLead(ctx); err != nil {
		return err
	}
	if !slices.Contains(going, r.speaker) {
		return nil
	}
	for _, t := range r.connected(manifest.RoleControlPlane) {
		if t.failure != nil || slices.Contains(going, t) {
			continue
		}
		member, err := t.isMember(ctx)
		if err != nil {
			return err
		}
		if member && t.answers(ctx) {
			r.speaker = t
			return nil
		}
	}
	return &KeepError{
		r.speaker.Name, "no other control plane works that would be left",
		"add another control plane first; kkbundle reset takes the whole cluster away",
	}
}

// mayGo refuses hosts that others use for more than their pods.
func (r *run) mayGo(t *Target) error {
	switch {
	case r.cluster.ImageRegistry.Type.Installed() && t.Is(manifest.RoleRegistry):
		return &KeepError{t.Name, "all nodes pull their images from its registry", "give the group image_registry another host, and run kkbundle install, first"}
	case t.Is(manifest.RoleNFS):
		return &KeepError{t.Name, "it holds volumes (group nfs)", "move the volumes to another host first"}
	case t.endpointIs():
		return &KeepError{
			t.Name, "the cluster's endpoint is its address, " + r.endpoint() + ": no node would find the API server",
			"a cluster whose control planes shall come and go needs controlPlaneEndpoint kube-vip, haproxy, external or a name of its own, from the beginning",
		}
	}
	return nil
}

// deletions says what deleting nodes means.
func (r *run) deletions(going []*Target) []string {
	var list []string
	for _, t := range going {
		text := t.Name + " is cordoned and drained, "
		if r.gone {
			text = t.Name + " is gone: its pods are deleted, "
		}
		if r.hasMember(t) {
			text += "its member is removed from etcd, "
		}
		text += "the node is deleted"
		if !r.gone {
			text += ", and the host is reset; what cannot be made again stays"
			if r.WithData {
				text = strings.TrimSuffix(text, "; what cannot be made again stays") + " with all data"
			}
		}
		list = append(list, text)
	}
	return append(list, r.unreached()...)
}

// deleteNode takes one node out, and resets its host.
func (r *run) deleteNode(ctx context.Context, t *Target, d Deletion) error {
	begin := r.Now()
	r.tell(Event{Phase: deletePhase, State: Started})
	state := Done
	err := r.deleteSteps(ctx, t, d)
	if err != nil {
		state = Failed
	}
	r.tell(Event{Phase: deletePhase, State: state, Duration: r.Now().Sub(begin)})
	return err
}

const deletePhase = "delete"

func (r *run) deleteSteps(ctx context.Context, t *Target, d Deletion) error {
	for _, task := range []Task{drainTask(d), etcdLeaveTask(d.Unreachable), nodeObjectTask()} {
		if err := r.taskOn(ctx, deletePhase, task, t); err != nil {
			return err
		}
	}
	if d.Unreachable {
		return nil
	}
	return r.resetHost(ctx, t)
}

// isNode tells whether the cluster has a node of this name.
func (t *Target) isNode(ctx context.Context) (bool, error) {
	return t.run.firstControlPlane().kube().HasNode(ctx, t.Name)
}

func (t *Target) isNoNode(ctx context.Context) (bool, error) {
	there, err := t.isNode(ctx)
	if there {
		because(ctx, "it is a node")
	}
	return !there, err
}

// drainTask lets no new pods onto the node and moves those that are there. Those of a host that is gone are deleted.
func drainTask(d Deletion) Task {
	return Task{
		Name: "drain",
		Done: func(ctx context.Context, t *Target) (bool, error) { return t.isNoNode(ctx) },
		Do: func(ctx context.Context, t *Target) error {
			api := t.run.firstControlPlane().kube()
			if err := api.Cordon(ctx, t.Name); err != nil {
				return err
			}
			how := kube.Drain{Timeout: d.DrainTimeout, Force: true, DisableEviction: d.DisableEviction, HostGone: d.Unreachable}
			if how.Timeout <= 0 {
				how.Timeout = DrainTimeout
			}
			err := api.Drain(ctx, t.Name, how)
			if err != nil && !d.Unreachable {
				return &DrainError{Host: t.Name, Err: err}
			}
			return err
		},
	}
}

// A DrainError says that pods did not leave a node. It stays cordoned.
type DrainError struct {
	Host string
	Err  error
}

// Error repeats what kubectl says.
func (e *DrainError) Error() string {
	return "pods do not leave the node, which takes no new ones now: " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *DrainError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *DrainError) Hint() string {
	return "see why (a PodDisruptionBudget, a pod that does not end) and run again, with a longer --drain-timeout, or with --disable-eviction to delete the pods all the same; kubectl uncordon " + e.Host + " keeps the node"
}

// nodeObjectTask deletes the node from the cluster.
func nodeObjectTask() Task {
	return Task{
		Name: "node",
		Done: func(ctx context.Context, t *Target) (bool, error) { return t.isNoNode(ctx) },
		Do: func(ctx context.Context, t *Target) error {
			if err := t.run.distribution.keepDown(ctx, t); err != nil {
				return err
			}
			return t.run.firstControlPlane().kube().DeleteNode(ctx, t.Name)
		},
	}
}
