package rotate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A MoveError means that the cluster's endpoint cannot be moved to the cluster file's.
type MoveError struct{ Reason, Advice string }

// Error returns the reason.
func (e *MoveError) Error() string { return "the endpoint is not moved: " + e.Reason }

// Hint returns the remedy.
func (e *MoveError) Hint() string { return e.Advice }

// MoveEndpoint moves the endpoint of a running cluster to the cluster file's. The new endpoint works before the first
// client uses it, and the old one until the last has left it. agree gets the changes in sentences, and its error ends
// the run; it is not called if there is nothing to do. An interrupted move is continued by the next one.
func MoveEndpoint(ctx context.Context, o engine.Options, agree func([]string) error) (engine.Report, error) {
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall()); err != nil {
		return engine.Report{}, err
	}
	if o.Cluster.WithDefaults().Kubernetes.Distribution != manifest.DistributionKubernetes {
		return engine.Report{}, &MoveError{
			"this is k3s, whose endpoint kkbundle does not move",
			"see k3s' own documentation, or install the cluster anew with its endpoint",
		}
	}
	r, err := begin.NewFitting(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		looking := task.InTask(ctx, "connect")
		if err := begin.RefuseHandedOver(looking, r); err != nil {
			return err
		}
		if err := checkMovable(looking, r); err != nil {
			return err
		}
		m, err := endpoint.FindMove(looking, r.Site)
		if err != nil || len(m.From) == 0 {
			return err
		}
		if err := checkMove(r.Cluster, m); err != nil {
			return err
		}
		if err := agree(moveText(m)); err != nil {
			return err
		}
		return r.Phases(ctx, movePhases(r.Cluster, m))
	})
}

// checkMovable refuses a cluster that differs from the cluster file in other things than its endpoint.
func checkMovable(ctx context.Context, r *engine.Run) error {
	rotated, err := begin.RotatedOn(ctx, r)
	if err != nil {
		return err
	}
	if rotated != nil {
		return begin.RotationRefusal(rotated)
	}
	first := r.FirstControlPlane()
	id, settings, begun, err := member.Recorded(ctx, first)
	if err != nil || !begun {
		return errors.Join(err, begin.NoCluster(begun, err))
	}
	if _, _, err := member.Membership(ctx, first); err != nil {
		return err
	}
	if err := checkNotUpgrading(ctx, r); err != nil {
		return err
	}
	now, then := member.Changed(r.Site, settings)
	if !begin.HasOtherVital(r.Site, then) {
		return nil
	}
	is, _ := member.VitalText(id, then)
	want, _ := member.VitalText(member.Identity(r.Site), now)
	return &member.OtherClusterError{Host: first.Name, Is: is, Want: want}
}

// checkNotUpgrading refuses a cluster in the middle of an upgrade: nodes of the other release, or a control plane
// that is not complete.
func checkNotUpgrading(ctx context.Context, r *engine.Run) error {
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		joined, err := member.IsMember(ctx, t)
		if err != nil || !joined {
			return err
		}
		begun, err := marks.Any(ctx, t, marks.UpgradeBegun, marks.ServerUpgraded)
		if err == nil && begun {
			err = &MoveError{
				"an upgrade was interrupted on " + t.Name,
				"complete it first: run kkbundle upgrade again, or kkbundle upgrade --rollback with the bundle before",
			}
		}
		return err
	})
}

// checkMove refuses moves during which clients would lose the API server.
func checkMove(c *manifest.Cluster, m endpoint.Move) error {
	if m.To.Type == manifest.EndpointKubeVIP && c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		return &MoveError{
			"kube-proxy in IPVS mode would remove the address of kube-vip",
			"use type haproxy or external",
		}
	}
	for _, from := range m.From {
		owns := from.Type == manifest.EndpointKubeVIP || from.Type == manifest.EndpointHAProxy
		switch {
		case owns && from.Type == m.To.Type:
			return &MoveError{fmt.Sprintf("%s cannot serve %s and %s at the same time", from.Type, from.HostPort,
				m.To.HostPort), "move to another type first, then to this one"}
		case owns && from.HostPort == m.To.HostPort:
			return &MoveError{
				fmt.Sprintf("%s is served by %s, which the move removes", from.HostPort, from.Type),
				"choose another address",
			}
		}
	}
	return nil
}

// moveText describes a move in sentences.
func moveText(m endpoint.Move) []string {
	var from []string
	for _, a := range m.From {
		from = append(from, a.HostPort+" ("+string(a.Type)+")")
	}
	return []string{
		fmt.Sprintf("the endpoint %s becomes %s (%s)", strings.Join(from, ", "), m.To.HostPort, m.To.Type),
		"API servers get certificates for both, without a restart; kubelets restart one after the other, and kube-proxy's pods are replaced; other pods run on",
	}
}

// movePhases returns the tasks of a move. Every one of them needs the ones before on all hosts.
func movePhases(c *manifest.Cluster, m endpoint.Move) []task.Phase {
	begin := []task.Task{
		kubeadm.EndpointPendingTask(), cluster.APITask(),
		health.WaitTask(health.CheckNodes, task.NodeReadyTimeout, health.NodesAreReady),
	}
	serve := slices.Concat(
		[]task.Task{endpoint.BeginMoveTask(m), kubeadm.EndpointConfigTask(m), kubeadm.EndpointCertificateTask(m)},
		plan.RegistryTasks(c), liveOnly(plan.ContainerTasks(c)), cri.PreloadTasks(c), endpoint.MoveTasks(c))
	clients := []task.Task{
		endpoint.ClusterInfoTask(m), kubeadm.NodeMoveTask(m), endpoint.ProxyMoveTask(m),
		cluster.AdminConfTask(),
	}
	hosts := machine.HostsTask()
	hosts.AllOrNone = true
	former := slices.Concat(endpoint.FormerTasks(m), []task.Task{hosts, endpoint.EndMoveTask()})
	return []task.Phase{
		{Name: "look", Tasks: begin},
		{Name: "precheck", Tasks: []task.Task{plan.PrecheckTask()}},
		{Name: "serve", Tasks: serve},
		{Name: "clients", Tasks: clients},
		{Name: "former", Tasks: former},
		{Name: task.VerifyPhase, Tasks: plan.VerifyTasks(c)},
	}
}
