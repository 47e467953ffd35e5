package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
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
func DeleteNodes(ctx context.Context, o engine.Options, d Deletion, agree func([]string) error) (engine.Report, error) {
	r, err := newInstall(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	r.Scope.Changing, r.Scope.Sparing, r.Scope.Leaving = d.Hosts, true, true
	r.Gone = d.Unreachable
	return r.Start(ctx, func(ctx context.Context) error {
		going, err := leavers(task.InTask(ctx, "connect"), r, d)
		if err != nil {
			return err
		}
		if err := agree(deletions(r, going)); err != nil || r.DryRun {
			return err
		}
		going = onlyThese(r, going)
		for _, t := range going {
			if err := deleteNode(ctx, r, t, d); err != nil {
				return err
			}
		}
		r.Hosts = slices.DeleteFunc(r.Hosts, func(t *task.Host) bool {
			if !slices.Contains(going, t) {
				return false
			}
			if t.Conn != nil {
				_ = t.Conn.Close() // everything that was done has been answered
			}
			return true
		})
		r.Renew(func(s *task.Site) { s.Scope.Hosts, s.Scope.Leaving = nil, false })
		return follow(ctx, r, Plan(r.Cluster))
	})
}

// onlyThese goes on with a site whose scope are these hosts, and returns them as they are there.
func onlyThese(r *engine.Run, going []*task.Host) []*task.Host {
	names := make([]string, len(going))
	for i, t := range going {
		names[i] = t.Name
	}
	r.Renew(func(s *task.Site) { s.Scope.Hosts = names })
	list := make([]*task.Host, len(going))
	for i, t := range going {
		if list[i] = r.Target(t.Name); list[i] == nil { // it is not in the inventory
			t.Site = r.Site
			list[i] = t
		}
	}
	return list
}

// leavers returns the hosts to delete, if the cluster can do without them.
func leavers(ctx context.Context, r *engine.Run, d Deletion) ([]*task.Host, error) {
	var going []*task.Host
	for _, name := range d.Hosts {
		t := r.Target(name)
		switch {
		case t == nil && !d.Unreachable:
			return nil, fmt.Errorf("there is no host %q in the inventory; a node that is gone is deleted with --unreachable", name)
		case t == nil:
			t = &task.Host{Host: manifest.Host{Name: name}, Err: engine.ErrGone, Site: r.Site}
		}
		going = append(going, t)
	}
	if err := leadWithout(ctx, r, going); err != nil {
		return nil, err
	}
	if err := checkMembers(ctx, r); err != nil {
		return nil, err
	}
	if begun, err := member.IsMember(ctx, r.FirstControlPlane()); err != nil || !begun {
		return nil, errors.Join(err, noCluster(begun, err))
	}
	for _, t := range going {
		if err := mayGo(r, t); err != nil {
			return nil, err
		}
	}
	if err := areGone(ctx, r, going); err != nil {
		return nil, err
	}
	return going, r.Distribution.QuorumWithout(ctx, r.Site, going)
}

// areGone refuses to take a host for gone whose kubelet still reports to the cluster: its pods would go on beside those that are
// made in their place. It refuses names, too, that neither the inventory nor the cluster has.
func areGone(ctx context.Context, r *engine.Run, going []*task.Host) error {
	if !r.Gone {
		return nil
	}
	nodes, err := r.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil {
		return err
	}
	for _, t := range going {
		n := kube.FindNode(nodes, t.Name)
		switch {
		case n == nil && r.Target(t.Name) == nil:
			if member, err := etcd.IsMember(ctx, r.Site, t.Name); err != nil || !member {
				return errors.Join(err, &UnknownNodeError{t.Name})
			}
		case n != nil && kube.IsNodeReady(n):
			return &task.KeepError{
				Host: t.Name, Reason: "it is not gone: the cluster has the node as Ready",
				Advice: "delete it without --unreachable, or switch it off; the cluster notices within a minute that a host is gone",
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
func leadWithout(ctx context.Context, r *engine.Run, going []*task.Host) error {
	if err := r.FindLead(ctx); err != nil {
		return err
	}
	if !slices.Contains(going, r.Speaker) {
		return nil
	}
	for _, t := range r.Connected(manifest.RoleControlPlane) {
		if t.Err != nil || slices.Contains(going, t) {
			continue
		}
		member, err := member.IsMember(ctx, t)
		if err != nil {
			return err
		}
		if member && engine.Answers(ctx, t) {
			r.Speaker = t
			return nil
		}
	}
	return &task.KeepError{
		Host: r.Speaker.Name, Reason: "no other control plane works that would be left",
		Advice: "add another control plane first; kkbundle reset takes the whole cluster away",
	}
}

// mayGo refuses hosts that others use for more than their pods.
func mayGo(r *engine.Run, t *task.Host) error {
	switch {
	case r.Cluster.ImageRegistry.Type.Installed() && t.Is(manifest.RoleRegistry):
		return &task.KeepError{Host: t.Name, Reason: "all nodes pull their images from its registry", Advice: "give the group image_registry another host, and run kkbundle install, first"}
	case t.Is(manifest.RoleNFS):
		return &task.KeepError{Host: t.Name, Reason: "it holds volumes (group nfs)", Advice: "move the volumes to another host first"}
	case endpointIs(t):
		return &task.KeepError{
			Host: t.Name, Reason: "the cluster's endpoint is its address, " + r.Endpoint() + ": no node would find the API server",
			Advice: "a cluster whose control planes shall come and go needs controlPlaneEndpoint kube-vip, haproxy, external or a name of its own, from the beginning",
		}
	}
	return nil
}

// deletions says what deleting nodes means.
func deletions(r *engine.Run, going []*task.Host) []string {
	var list []string
	for _, t := range going {
		text := t.Name + " is cordoned and drained, "
		if r.Gone {
			text = t.Name + " is gone: its pods are deleted, "
		}
		if etcd.ManagesMember(r.Site, t) {
			text += "its member is removed from etcd, "
		}
		text += "the node is deleted"
		if !r.Gone {
			text += ", and the host is reset; what cannot be made again stays"
			if r.WithData {
				text = strings.TrimSuffix(text, "; what cannot be made again stays") + " with all data"
			}
		}
		list = append(list, text)
	}
	return append(list, unreached(r)...)
}

// deleteNode takes one node out, and resets its host.
func deleteNode(ctx context.Context, r *engine.Run, t *task.Host, d Deletion) error {
	begin := r.Now()
	r.Tell(task.Event{Phase: deletePhase, State: task.Started})
	state := task.Done
	err := deleteSteps(ctx, r, t, d)
	if err != nil {
		state = task.Failed
	}
	r.Tell(task.Event{Phase: deletePhase, State: state, Duration: r.Now().Sub(begin)})
	return err
}

const deletePhase = "delete"

func deleteSteps(ctx context.Context, r *engine.Run, t *task.Host, d Deletion) error {
	for _, task := range []task.Task{drainTask(d), etcd.LeaveTask(d.Unreachable), nodeObjectTask()} {
		if err := r.TaskOn(ctx, deletePhase, task, t); err != nil {
			return err
		}
	}
	if d.Unreachable {
		return nil
	}
	return resetHost(ctx, r, t)
}

// isNode tells whether the cluster has a node of this name.
func isNode(ctx context.Context, t *task.Host) (bool, error) {
	return t.Site.FirstControlPlane().Kube().HasNode(ctx, t.Name)
}

func isNoNode(ctx context.Context, t *task.Host) (bool, error) {
	there, err := isNode(ctx, t)
	if there {
		task.Because(ctx, "it is a node")
	}
	return !there, err
}

// drainTask lets no new pods onto the node and moves those that are there. Those of a host that is gone are deleted.
func drainTask(d Deletion) task.Task {
	return task.Task{
		Name: "drain",
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return isNoNode(ctx, t) },
		Do: func(ctx context.Context, t *task.Host) error {
			api := t.Site.FirstControlPlane().Kube()
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
func nodeObjectTask() task.Task {
	return task.Task{
		Name: "node",
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return isNoNode(ctx, t) },
		Do: func(ctx context.Context, t *task.Host) error {
			if err := t.Site.Distribution.KeepDown(ctx, t); err != nil {
				return err
			}
			return t.Site.FirstControlPlane().Kube().DeleteNode(ctx, t.Name)
		},
	}
}
