package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Deletion selects the nodes to delete, and how.
type Deletion struct {
	Hosts []string
	// Unreachable means that the hosts are gone for good: only the cluster is changed. They need not be in the
	// inventory.
	Unreachable bool
	// DrainTimeout bounds the drain of a node; 0 is kube.DrainTimeout.
	DrainTimeout time.Duration
	// DisableEviction deletes pods in spite of a PodDisruptionBudget.
	DisableEviction bool
}

// Delete removes nodes from a cluster, one after the other: it cordons and drains the node, removes its etcd
// member, deletes the node, and resets the host. Then it tells the other hosts. Before any change it refuses deletions
// that would leave the cluster without a control plane, etcd without a quorum, or the hosts without their registry.
// agree gets the planned changes in sentences, and its error ends the run. An interrupted DeleteNodes is continued by
// the next one.
func Delete(ctx context.Context, o engine.Options, d Deletion, agree func([]string) error) (engine.Report, error) {
	r, err := begin.NewFitting(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	r.Scope.Changing, r.Scope.SkipUnreachable, r.Scope.Leaving = d.Hosts, true, true
	r.Gone = d.Unreachable
	return r.Start(ctx, func(ctx context.Context) error {
		going, err := deletable(task.InTask(ctx, "connect"), r, d)
		if err != nil {
			return err
		}
		if err := agree(deletions(r, going)); err != nil || r.DryRun {
			return err
		}
		going = limitTo(r, going)
		for _, t := range going {
			if err := begin.InPhase(r, deletePhase, func() error { return deleteNode(ctx, r, t, d) }); err != nil {
				return err
			}
		}
		gone := map[string]bool{}
		for _, t := range going {
			gone[t.Name] = true
			if t.Conn != nil {
				_ = t.Conn.Close() // all commands have been answered
			}
		}
		r.ChangeSite(func(s *task.Site) {
			s.Scope.Hosts, s.Scope.Leaving = nil, false
			s.Hosts = slices.DeleteFunc(s.Hosts, func(t *task.Host) bool { return gone[t.Name] })
		})
		return follow(ctx, r, plan.Plan(r.Cluster))
	})
}

// limitTo renews the site with these hosts as its scope, and returns them as hosts of that site.
func limitTo(r *engine.Run, going []*task.Host) []*task.Host {
	names := make([]string, len(going))
	for i, t := range going {
		names[i] = t.Name
	}
	r.ChangeSite(func(s *task.Site) { s.Scope.Hosts = names })
	list := make([]*task.Host, len(going))
	for i, t := range going {
		if list[i] = r.HostNamed(t.Name); list[i] == nil { // not in the inventory
			t.Site = r.Site
			list[i] = t
		}
	}
	return list
}

// deletable returns the hosts to delete, if the cluster works without them.
func deletable(ctx context.Context, r *engine.Run, d Deletion) ([]*task.Host, error) {
	var going []*task.Host
	for _, name := range d.Hosts {
		t := r.HostNamed(name)
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
	if err := begin.CheckMembers(ctx, r); err != nil {
		return nil, err
	}
	if begun, err := member.IsMember(ctx, r.FirstControlPlane()); err != nil || !begun {
		return nil, errors.Join(err, begin.NoCluster(begun, err))
	}
	for _, t := range going {
		if err := checkDeletable(r, t); err != nil {
			return nil, err
		}
		if t.Conn == nil {
			continue
		}
		if err := reset.RefuseAdopted(ctx, t); err != nil {
			return nil, err
		}
	}
	if err := areGone(ctx, r, going); err != nil {
		return nil, err
	}
	return going, r.Distribution.QuorumWithout(ctx, r.Site, going)
}

// areGone refuses to treat a host as gone while its kubelet reports to the cluster: its pods would run beside their
// replacements. It also refuses names that neither the inventory nor the cluster has.
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
		case n == nil && r.HostNamed(t.Name) == nil:
			if member, err := etcd.IsMember(ctx, r.Site, t.Name); err != nil || !member {
				return errors.Join(err, plain.Advise(fmt.Errorf(
					"there is no host %q in the inventory, and no such node in the cluster", t.Name),
					"kkbundle status lists the nodes; if this one was deleted already, kkbundle install brings the other hosts up to date"))
			}
		case n != nil && kube.IsNodeReady(n):
			return &task.KeepError{
				Host: t.Name, Reason: "it is not gone: the node is Ready",
				Advice: "delete it without --unreachable, or switch it off; the node becomes NotReady within a minute",
			}
		}
	}
	return nil
}

// leadWithout chooses a leading control plane that stays.
func leadWithout(ctx context.Context, r *engine.Run, going []*task.Host) error {
	if err := r.FindLead(ctx); err != nil {
		return err
	}
	if !slices.Contains(going, r.LeadHost) {
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
			r.LeadHost = t
			return nil
		}
	}
	return &task.KeepError{
		Host: r.LeadHost.Name, Reason: "no other working control plane would remain",
		Advice: "add another control plane first; kkbundle reset removes the whole cluster",
	}
}

// checkDeletable refuses hosts that serve others by more than their pods.
func checkDeletable(r *engine.Run, t *task.Host) error {
	switch {
	case r.Cluster.ImageRegistry.Type.Installed() && t.Is(manifest.RoleRegistry):
		return &task.KeepError{
			Host: t.Name, Reason: "all nodes pull their images from its registry",
			Advice: "give the group image_registry another host, and run kkbundle install, first",
		}
	case t.Is(manifest.RoleNFS):
		return &task.KeepError{
			Host: t.Name, Reason: "it holds volumes (group nfs)",
			Advice: "move the volumes to another host first",
		}
	case isEndpoint(t):
		return &task.KeepError{
			Host: t.Name, Reason: "the cluster's endpoint is its address, " + r.Endpoint() +
				": no node would find the API server",
			Advice: "a cluster with replaceable control planes needs controlPlaneEndpoint kube-vip, haproxy, external or a name of its own, from the beginning",
		}
	}
	return nil
}

// deletions describes the changes of deleting nodes.
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
			text += ", and the host is reset; its data stays"
			if r.WithData {
				text = strings.TrimSuffix(text, "; its data stays") + " with all data"
			}
		}
		list = append(list, text)
	}
	return append(list, unreached(r)...)
}

const deletePhase = "delete"

// deleteNode deletes one node and resets its host.
func deleteNode(ctx context.Context, r *engine.Run, t *task.Host, d Deletion) error {
	for _, task := range []task.Task{drainTask(d), etcd.LeaveTask(d.Unreachable), nodeObjectTask()} {
		if err := r.TaskOn(ctx, deletePhase, task, t); err != nil {
			return err
		}
	}
	if d.Unreachable {
		return nil
	}
	return reset.Host(ctx, r, t)
}

func isNoNode(ctx context.Context, t *task.Host) (bool, error) {
	there, err := t.Site.FirstControlPlane().Kube().HasNode(ctx, t.Name)
	if there {
		task.Because(ctx, "it is a node")
	}
	return !there, err
}

// drainTask cordons the node and drains it. Pods of a host that is gone are deleted.
func drainTask(d Deletion) task.Task {
	return task.Task{
		Name: "drain",
		Done: isNoNode,
		Do: func(ctx context.Context, t *task.Host) error {
			api := t.Site.FirstControlPlane().Kube()
			if err := api.Cordon(ctx, t.Name); err != nil {
				return err
			}
			how := kube.Drain{
				Timeout: d.DrainTimeout, Force: true, DisableEviction: d.DisableEviction,
				HostGone: d.Unreachable,
			}
			if how.Timeout <= 0 {
				how.Timeout = kube.DrainTimeout
			}
			err := api.Drain(ctx, t.Name, how)
			if err != nil && !d.Unreachable {
				return plain.Advise(fmt.Errorf("the node is cordoned, but its pods do not leave: %w", err),
					"find the reason (a PodDisruptionBudget, a pod that does not end) and run again, with a longer --drain-timeout, or with --disable-eviction to delete the pods anyway; kubectl uncordon "+t.Name+" keeps the node")
			}
			return err
		},
	}
}

func nodeObjectTask() task.Task {
	return task.Task{
		Name: "node",
		Done: isNoNode,
		Do: func(ctx context.Context, t *task.Host) error {
			if err := t.Site.Distribution.KeepDown(ctx, t); err != nil {
				return err
			}
			return t.Site.FirstControlPlane().Kube().DeleteNode(ctx, t.Name)
		},
	}
}
