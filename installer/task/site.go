package task

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Site holds all that a step may know about the cluster and the run. It does not change while steps run: With makes
// a copy for another scope or another release of the cluster. A literal with the fields that a step reads is enough
// to test the step.
type Site struct {
	Source
	Inputs
	Consent
	Output
	// Cluster has its defaults filled in; ClusterOn returns it with the values of one host.
	Cluster   *manifest.Cluster
	ClusterOn func(manifest.Host) (*manifest.Cluster, error)
	// Hosts are the inventory's hosts with a role, in its order.
	Hosts []*Host
	// Lead returns the control plane that speaks for the cluster, nil before it is known. RecordedEndpoint returns the
	// endpoint recorded there at the cluster's creation, "" if the lead is not a node.
	Lead             func() *Host
	RecordedEndpoint func() string
	Scope            Scope
	Rule             ClusterRule
	// Dir is the cluster's work directory on the deploy machine.
	Dir *WorkDir
	// Demands are the cluster's needs from a bundle, with the roles of the hosts that need them.
	Demands      []manifest.Demand
	Packages     *RolePackages
	Distribution Distribution
	Registry     func(*Site) (RegistryAccess, error) // see Access
	Files        FileSource
	Verified     *Verification
	// Parallel limits how many hosts a run works on at the same time.
	Parallel int
	// Precheck checks all hosts and returns an error if the run cannot succeed.
	Precheck func(ctx context.Context) error
	// Now is the clock for certificates.
	Now func() time.Time
}

// Inputs are the operator's own files and answers on the deploy machine.
type Inputs struct {
	// Hooks are the scripts that run on hosts.
	Hooks Hooks
	// Values reads a file named in the cluster file.
	Values func(path string) ([]byte, error)
	// Script returns the text of a hook with values of the bundle's table; nil leaves hooks as they are.
	Script func(name string, data []byte) ([]byte, error)
	// SiteValues is the content of the work directory's file of values; nil leaves the file as it is.
	SiteValues []byte
	// Groups are the groups of the bundle that are on. SiteGroups is the content of the work directory's file of them;
	// nil leaves the file as it is.
	Groups     groups.Set
	SiteGroups []byte
	// RegistryPassword returns the password for an existing registry; nil if the registry needs no login.
	RegistryPassword func() (string, error)
}

// Hooks are scripts for hosts, by their paths below a directory of hooks. The zero value has none.
type Hooks struct {
	Names []string // such as kube_worker/pre_install.sh
	Read  func(name string) ([]byte, error)
	Place func(name string) string // for messages
	// Anywhere means that some may be for hosts of other inventories.
	Anywhere bool
}

// Consent lists the operator's permissions for a run.
type Consent struct {
	// DryRun only reports the changes that a run would make. The helper is put on hosts even so.
	DryRun bool
	// Force runs hooks again and ignores a precheck that blocks.
	Force bool
	// Foreign lets Reset remove a cluster that kkbundle did not install.
	Foreign bool
	// Owner is the machine of Cluster API that the run is for, "" for a person's run. Provision marks its host with it,
	// and Reset touches no host without that mark.
	Owner Machine
	// WithData lets Reset remove data that cannot be restored, such as the images in the registry.
	WithData bool
}

// Output takes a step's messages.
type Output struct {
	Tell   func(Event)                                  // reports an event
	Note   func(ctx context.Context, host, text string) // writes a line about a host into install.log
	Mask   *Masker
	Logger *slog.Logger // details
}

// A ClusterRule restricts the clusters that the hosts of a run may belong to.
type ClusterRule int

// The rules.
const (
	SameCluster  ClusterRule = iota // same name and version
	OtherVersion                    // same name
	AnyCluster
)

// A Scope selects the hosts that a run works on. The zero value selects every host.
type Scope struct {
	Hosts           []string // names; none selects all
	Changing        []string // hosts that join or leave the cluster
	Without         []string // hosts that stay as they are
	SkipUnreachable bool
	RunFollowers    bool // run tasks with Follows on all hosts
	Leaving         bool // the hosts leave a cluster that continues
}

// Whole reports whether the scope selects every host.
func (s Scope) Whole() bool { return len(s.Hosts) == 0 }

// Includes reports whether the host of this name is in the scope.
func (s Scope) Includes(name string) bool { return s.Whole() || slices.Contains(s.Hosts, name) }

// With returns a changed copy. Its hosts are copies, too; they share connections with the originals.
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

// FirstControlPlane returns the lead, or else the first control plane of the inventory. kubectl runs there.
func (s *Site) FirstControlPlane() *Host {
	if s.Lead != nil {
		if t := s.Lead(); t != nil {
			return t
		}
	}
	return s.WithRole(manifest.RoleControlPlane)[0]
}

func (s *Site) recordedEndpoint() string {
	if s.RecordedEndpoint == nil {
		return ""
	}
	return s.RecordedEndpoint()
}

// Access returns the address and login of the registry that hosts pull from.
func (s *Site) Access() (RegistryAccess, error) { return s.Registry(s) }

// WithRole returns the hosts with one of the roles, or every host if none is given.
func (s *Site) WithRole(roles ...manifest.Role) []*Host {
	var list []*Host
	for _, t := range s.Hosts {
		if len(roles) == 0 || slices.ContainsFunc(roles, t.Is) {
			list = append(list, t)
		}
	}
	return list
}

// Connected returns the hosts of WithRole that this run is connected to.
func (s *Site) Connected(roles ...manifest.Role) []*Host {
	return slices.DeleteFunc(s.WithRole(roles...), func(t *Host) bool { return t.Conn == nil })
}

// HostNamed returns the host with a name, or nil.
func (s *Site) HostNamed(name string) *Host {
	i := slices.IndexFunc(s.Hosts, func(t *Host) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return s.Hosts[i]
}

// IsWanted reports whether the run works on a host: it is in the scope, and neither failed nor skipped as unreachable.
func (s *Site) IsWanted(t *Host) bool {
	return !t.Failed && !slices.Contains(s.Scope.Without, t.Name) && !(s.Scope.SkipUnreachable && t.Err != nil) &&
		s.Scope.Includes(t.Name)
}

// LeftOut reports whether the run continues without the host, after a failed task or a failed connection. The failure
// was reported already, so nothing must wait for the host.
func (s *Site) LeftOut(name string) bool {
	t := s.HostNamed(name)
	return t != nil && (t.Failed || t.Err != nil)
}

// OnAll calls do for several hosts in parallel and joins the errors. One host's failure does not stop the others.
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
	return JoinHosts(targets, errs)
}

// FirstOf returns the first host, or nil.
func FirstOf(targets []*Host) *Host {
	if len(targets) == 0 {
		return nil
	}
	return targets[0]
}

// A KeepError gives the reason why a node cannot be deleted.
type KeepError struct{ Host, Reason, Advice string }

// Error names the host and the reason.
func (e *KeepError) Error() string { return e.Host + " cannot be deleted: " + e.Reason }

// Hint returns the remedy.
func (e *KeepError) Hint() string { return e.Advice }
