package task

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Site is everything that a step may know. It does not change while steps run: a run that goes on with another
// scope or another release of the cluster makes a new one with With. A literal with the fields that a step reads is
// enough to test the step.
type Site struct {
	Source
	Inputs
	Consent
	Output
	// cluster has its defaults filled in; on returns the cluster as it is on one host.
	Cluster   *manifest.Cluster
	ClusterOn func(manifest.Host) (*manifest.Cluster, error)
	// targets are the inventory's hosts with a role, in its order.
	Hosts []*Host
	// lead returns the control plane that speaks for the cluster, nil before it is known; endpoint returns the
	// endpoint that it was made with, "" if it is not a node.
	Lead             func() *Host
	RecordedEndpoint func() string
	Scope            Scope
	Rule             ClusterRule
	// dir is the cluster's work directory on the deploy machine.
	Dir *WorkDir
	// demands are the cluster's needs from a bundle with the roles of the hosts that have them.
	Demands  []manifest.Demand
	Packages *RolePackages
	// distribution is the cluster's; registry returns how hosts reach the registry that they pull from.
	Distribution Distribution
	Registry     func(*Site) (RegistryAccess, error)
	Verified     *Verification
	// parallel is the number of hosts that are worked on at the same time.
	Parallel int
	// precheck looks at all hosts and returns an error if the run cannot succeed.
	Precheck func(ctx context.Context) error
	// Now is the clock by which certificates are made.
	Now func() time.Time
}

// Inputs are the operator's own files and answers on the deploy machine.
type Inputs struct {
	// HooksDir has the operator's scripts; empty if there are none.
	HooksDir string
	// Values reads a file that the cluster names.
	Values func(path string) ([]byte, error)
	// RegistryPassword returns the password for a registry of the site's own that wants a login; nil if there is none.
	RegistryPassword func() (string, error)
}

// Consent is what the operator allows a run to do.
type Consent struct {
	// DryRun looks and reports what would be done. The helper is put on hosts all the same.
	DryRun bool
	// Force runs hooks again, and goes on although the precheck blocks.
	Force bool
	// Foreign makes Reset take away a cluster that kkbundle has not made.
	Foreign bool
	// WithData makes Reset remove data that cannot be made again: the images in the registry.
	WithData bool
}

// Output is where a step's words go.
type Output struct {
	// tell reports an event, note writes a line about a host into install.log.
	Tell func(Event)
	Note func(ctx context.Context, host, text string)
	// mask removes secrets from text.
	Mask *Masker
	// Logger gets details.
	Logger *slog.Logger
}

// A ClusterRule says which cluster the hosts of a run may belong to.
type ClusterRule int

// The rules.
const (
	// SameCluster is the cluster of this name and version.
	SameCluster ClusterRule = iota
	// OtherVersion is the cluster of this name.
	OtherVersion
	// AnyCluster is whatever cluster is there.
	AnyCluster
)

// A Scope says which hosts a run works on for their own sake. The zero value is every host.
type Scope struct {
	// Hosts are the names of the only hosts; none stands for all.
	Hosts []string
	// Changing are the hosts that join or leave the cluster.
	Changing []string
	// Sparing leaves out hosts that cannot be reached.
	SkipUnreachable bool
	// Following makes tasks that depend on which hosts there are (Task.Follows) run on all hosts.
	RunFollowers bool
	// Leaving says that the hosts leave a cluster that goes on.
	Leaving bool
}

// Whole reports whether the scope is every host.
func (s Scope) Whole() bool { return len(s.Hosts) == 0 }

// Includes reports whether the host of this name is in the scope.
func (s Scope) Includes(name string) bool { return s.Whole() || slices.Contains(s.Hosts, name) }

// With returns a site that differs by change. It has hosts of its own, which share their connections with the old ones.
func (s *Site) With(change func(*Site)) *Site {
	next := *s
	next.Hosts = nil
	for _, t := range s.Hosts {
		h := *t
		h.Site = &next
		next.Hosts = append(next.Hosts, &h)
	}
	change(&next)
	return &next
}

// FirstControlPlane is where the cluster begins, and where kubectl runs: the lead, else the first of the inventory.
func (s *Site) FirstControlPlane() *Host {
	if s.Lead != nil {
		if t := s.Lead(); t != nil {
			return t
		}
	}
	return s.WithRole(manifest.RoleControlPlane)[0]
}

// endpointMade returns the endpoint that the cluster was made with, "" if that is not known.
func (s *Site) recordedEndpoint() string {
	if s.RecordedEndpoint == nil {
		return ""
	}
	return s.RecordedEndpoint()
}

// Access returns how hosts reach the registry that they pull from.
func (s *Site) Access() (RegistryAccess, error) { return s.Registry(s) }

// WithRole returns the hosts that have one of the roles; every host if none is named.
func (s *Site) WithRole(roles ...manifest.Role) []*Host {
	var list []*Host
	for _, t := range s.Hosts {
		if len(roles) == 0 || slices.ContainsFunc(roles, t.Is) {
			list = append(list, t)
		}
	}
	return list
}

// Connected returns those of the hosts with one of the roles that this run is Connected to.
func (s *Site) Connected(roles ...manifest.Role) []*Host {
	return slices.DeleteFunc(s.WithRole(roles...), func(t *Host) bool { return t.Conn == nil })
}

// Target returns the host of this name; nil if there is none.
func (s *Site) HostNamed(name string) *Host {
	i := slices.IndexFunc(s.Hosts, func(t *Host) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return s.Hosts[i]
}

// IsWanted reports whether this run works on a host for its own sake. It does not any more when a task has failed there.
func (s *Site) IsWanted(t *Host) bool {
	return !t.Failed && !(s.Scope.SkipUnreachable && t.Err != nil) && s.Scope.Includes(t.Name)
}

// LeftOut reports whether the run goes on without the host: a task has failed on it, or it is down and can be spared.
// Its failure was reported, and nothing waits for the host.
func (s *Site) LeftOut(name string) bool {
	t := s.HostNamed(name)
	return t != nil && (t.Failed || t.Err != nil)
}

// OnAll does something on several hosts at a time and joins the errors. One host's failure does not stop the others.
func (s *Site) OnAll(targets []*Host, do func(i int, t *Host) error) error {
	errs := make([]error, len(targets))
	var group errgroup.Group
	group.SetLimit(s.Parallel)
	for i, t := range targets {
		group.Go(func() error {
			errs[i] = do(i, t)
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}

// FirstOf returns the first host; nil if there is none.
func FirstOf(targets []*Host) *Host {
	if len(targets) == 0 {
		return nil
	}
	return targets[0]
}

// A KeepError says why a node cannot be deleted.
type KeepError struct{ Host, Reason, Advice string }

// Error names the host and the reason.
func (e *KeepError) Error() string { return e.Host + " cannot be deleted: " + e.Reason }

// Hint says what to do about it.
func (e *KeepError) Hint() string { return e.Advice }
