package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// findLead decides, once in a run, which control plane speaks for the cluster: the first of the inventory that is a node of
// it and whose API server answers; the first that is a node if none answers, as after a power failure; and where no
// control plane is a node yet, the first of the inventory, where the cluster then begins. So the inventory's first
// can be lost, replaced or moved. A control plane of another cluster is an error; so is one that was not reached where
// none is known to be a node, as the cluster may be there.
func (r *run) findLead(ctx context.Context) error {
	if r.speaker != nil {
		return nil
	}
	all := r.withRole(manifest.RoleControlPlane)
	reached := slices.DeleteFunc(slices.Clone(all), func(t *Target) bool { return t.on == nil || t.failure != nil })
	settings := make([]string, len(reached))
	member := make([]bool, len(reached))
	if err := r.onAll(reached, func(i int, t *Target) (err error) {
		settings[i], member[i], err = t.membership(ctx)
		return err
	}); err != nil {
		return err
	}
	lead := slices.Index(member, true)
	if lead < 0 {
		if err := r.lost(); err != nil && !r.verb.visits {
			return err
		}
		r.speaker = all[0]
		return nil
	}
	if countOf(member) > 1 {
		for i, t := range reached {
			if member[i] && t.answers(ctx) {
				lead = i
				break
			}
		}
	}
	r.speaker = reached[lead]
	r.made = settingOf(settings[lead], endpointSetting)
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

// answers tells whether the host's own API server is ready.
func (t *Target) answers(ctx context.Context) bool {
	_, err := t.kubectl(ctx, "get", "--raw=/readyz", "--request-timeout=5s")
	return err == nil
}

// ownServer is the control plane's own API server, where kubectl is to ask another than admin.conf names: kubectl must
// work there whatever has become of the address that all share. "" is what admin.conf names.
func (t *Target) ownServer() string {
	own := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	if !t.Is(manifest.RoleControlPlane) || !t.IP.IsValid() || t.run.endpoint() == own {
		return ""
	}
	return "https://" + own
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
func (r *run) lost() error {
	var hosts []string
	for _, t := range r.withRole(manifest.RoleControlPlane) {
		if t.on == nil || t.failure != nil {
			hosts = append(hosts, t.Name)
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	return &LostError{Cluster: r.identity().String(), Hosts: hosts}
}

// canSpare tells whether the run goes on without a host: with --limit, any one control plane and any one of two registry hosts
// that the run is not about are enough.
func (r *run) canSpare(t *Target) bool {
	if r.isRegistry(t) && !r.isPair() {
		return false
	}
	if r.scope.Sparing {
		return r.gone || !slices.Contains(r.scope.Changing, t.Name)
	}
	return !r.scope.Whole() && !r.isWanted(t) && (t.Is(manifest.RoleControlPlane) || r.isRegistry(t))
}

// spare reports the hosts that were lost and can be spared, or, if there is no control plane or no registry left, joins their
// errors.
func (r *run) spare() error {
	var errs []error
	for _, t := range r.targets {
		if t.failure == nil || errors.Is(t.failure, errGone) || !r.canSpare(t) {
			continue
		}
		errs = append(errs, t.failure)
	}
	works := func(t *Target) bool { return t.failure == nil }
	if slices.ContainsFunc(r.connected(manifest.RoleControlPlane), works) && (!r.isPair() || slices.ContainsFunc(r.connected(manifest.RoleRegistry), works)) {
		for _, err := range errs {
			r.Logger.Warn("a host that this run is not about is out of reach", "reason", r.mask.mask(err.Error()))
		}
		return nil
	}
	return errors.Join(errs...)
}
