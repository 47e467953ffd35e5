package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// FindLead selects once per run the control plane that speaks for the cluster: the first in the inventory that is a
// node and whose API server answers; if none answers, as after a power failure, the first that is a node; if none is
// a node yet, the first, where the cluster then begins. So the first control plane can be lost, replaced or moved. A
// control plane of another cluster is an error. If no reached control plane is a node, an unreached one is an error,
// too: the cluster may be there.
func (r *Run) FindLead(ctx context.Context) error {
	if r.LeadHost != nil {
		return nil
	}
	all := r.WithRole(manifest.RoleControlPlane)
	reached := slices.DeleteFunc(slices.Clone(all), func(t *task.Host) bool { return t.Conn == nil || t.Err != nil })
	settings := make([]string, len(reached))
	joined := make([]bool, len(reached))
	if err := r.OnAll(reached, func(i int, t *task.Host) (err error) {
		settings[i], joined[i], err = member.Membership(ctx, t)
		return err
	}); err != nil {
		return err
	}
	lead := slices.Index(joined, true)
	if lead < 0 {
		if err := r.lostError(); err != nil && !r.Operation.Visits {
			return err
		}
		r.LeadHost = all[0]
		return nil
	}
	if slices.Contains(joined[lead+1:], true) {
		for i, t := range reached {
			if joined[i] && Answers(ctx, t) {
				lead = i
				break
			}
		}
	}
	r.LeadHost = reached[lead]
	r.recordedEndpoint = member.Value(settings[lead], member.EndpointSetting)
	return nil
}

// Answers reports whether the host's own API server is ready.
func Answers(ctx context.Context, t *task.Host) bool {
	_, err := t.Kubectl(ctx, task.ReadyQuestion()...)
	return err == nil
}

// lostError returns an error if control planes were not reached: no reached one is a node, so the cluster may be on
// them.
func (r *Run) lostError() error {
	var hosts []string
	for _, t := range r.WithRole(manifest.RoleControlPlane) {
		if t.Conn == nil || t.Err != nil {
			hosts = append(hosts, t.Name)
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	return plain.Advise(
		fmt.Errorf("no reachable control plane has joined cluster %s; it may be running on %s, which cannot be reached",
			member.Identity(r.Site), strings.Join(hosts, ", ")),
		"bring one of these hosts back, or remove those that will never come back from the inventory")
}

// CanSpare reports whether the run continues without a host. With --limit, one control plane and one of two registry
// hosts are enough outside the scope.
func (r *Run) CanSpare(t *task.Host) bool {
	if r.IsRegistry(t) && !r.HasRegistryVIP() {
		return false
	}
	if r.Scope.SkipUnreachable {
		return r.Gone || !slices.Contains(r.Scope.Changing, t.Name)
	}
	return !r.Scope.Whole() && !r.IsWanted(t) && (t.Is(manifest.RoleControlPlane) || r.IsRegistry(t))
}

// ReportSpared logs the lost hosts that the run continues without. Without any control plane or registry, it returns
// their errors instead.
func (r *Run) ReportSpared() error {
	var errs []error
	for _, t := range r.Hosts {
		if t.Err == nil || errors.Is(t.Err, ErrGone) || isWithout(t) || !r.CanSpare(t) {
			continue
		}
		errs = append(errs, t.Err)
	}
	works := func(t *task.Host) bool { return t.Err == nil }
	if slices.ContainsFunc(r.Connected(manifest.RoleControlPlane), works) && (!r.HasRegistryVIP() ||
		slices.ContainsFunc(r.Connected(manifest.RoleRegistry), works)) {
		for _, err := range errs {
			r.Logger.Warn("a host outside this run cannot be reached", "reason", r.Mask.Mask(err.Error()))
		}
		return nil
	}
	return errors.Join(errs...)
}
