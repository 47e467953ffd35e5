package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// FindLead decides, once in a run, which control plane speaks for the cluster: the first of the inventory that is a node of
// it and whose API server answers; the first that is a node if none answers, as after a power failure; and where no
// control plane is a node yet, the first of the inventory, where the cluster then begins. So the inventory's first
// can be lost, replaced or moved. A control plane of another cluster is an error; so is one that was not reached where
// none is known to be a node, as the cluster may be there.
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
	if countOf(joined) > 1 {
		for i, t := range reached {
			if joined[i] && Answers(ctx, t) {
				lead = i
				break
			}
		}
	}
	r.LeadHost = reached[lead]
	r.recordedEndpoint = settingOf(settings[lead], member.EndpointSetting)
	return nil
}

func countOf(list []bool) int {
	n := 0
	for _, one := range list {
		if one {
			n++
		}
	}
	return n
}

// settingOf returns one of the settings that a node remembers, "" if it does not.
func settingOf(settings, name string) string {
	for line := range strings.Lines(settings) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}

// Answers tells whether the host's own API server is ready.
func Answers(ctx context.Context, t *task.Host) bool {
	_, err := t.Kubectl(ctx, "get", "--raw=/readyz", "--request-timeout=5s")
	return err == nil
}

// A LostError says that it cannot be told where the cluster is: no control plane that was reached is a node, and others
// were not reached.
type LostError struct {
	Cluster string
	// Hosts are the control planes that were not reached.
	Hosts []string
}

// Error names the cluster and the hosts.
func (e *LostError) Error() string {
	return fmt.Sprintf("no control plane of cluster %s was reached that is a node of it: the cluster may be on %s, which was not reached", e.Cluster, strings.Join(e.Hosts, ", "))
}

// Hint says what to do about it.
func (e *LostError) Hint() string {
	return "bring one of these hosts back, or take those that will never come back out of the inventory"
}

// lost returns a LostError if control planes were not reached.
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
	return &LostError{Cluster: member.Identity(r.Site).String(), Hosts: hosts}
}

// CanSpare tells whether the run goes on without a host: with --limit, any one control plane and any one of two registry hosts
// that the run is not about are enough.
func (r *Run) CanSpare(t *task.Host) bool {
	if r.IsRegistry(t) && !r.IsPair() {
		return false
	}
	if r.Scope.SkipUnreachable {
		return r.Gone || !slices.Contains(r.Scope.Changing, t.Name)
	}
	return !r.Scope.Whole() && !r.IsWanted(t) && (t.Is(manifest.RoleControlPlane) || r.IsRegistry(t))
}

// Spare reports the hosts that were lost and can be spared, or, if there is no control plane or no registry left, joins their
// errors.
func (r *Run) ReportSpared() error {
	var errs []error
	for _, t := range r.Hosts {
		if t.Err == nil || errors.Is(t.Err, ErrGone) || !r.CanSpare(t) {
			continue
		}
		errs = append(errs, t.Err)
	}
	works := func(t *task.Host) bool { return t.Err == nil }
	if slices.ContainsFunc(r.Connected(manifest.RoleControlPlane), works) && (!r.IsPair() || slices.ContainsFunc(r.Connected(manifest.RoleRegistry), works)) {
		for _, err := range errs {
			r.Logger.Warn("a host that this run is not about is out of reach", "reason", r.Mask.Mask(err.Error()))
		}
		return nil
	}
	return errors.Join(errs...)
}
