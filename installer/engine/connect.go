package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Connect connects to the hosts that this run needs and puts the helper on them. The error joins those of all hosts,
// so that the operator can fix them together.
func (r *Run) Connect(ctx context.Context) error {
	if err := r.FindTargets(); err != nil {
		return err
	}
	err := r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		if r.Gone && slices.Contains(r.Scope.Changing, t.Name) {
			t.Err = ErrGone
		} else {
			t.Err = r.ConnectTo(task.InTask(ctx, "connect"), t)
		}
		if r.CanSpare(t) {
			if r.Scope.SkipUnreachable && t.Err != nil {
				DropConnection(t)
			}
			return nil
		}
		return t.Err
	})
	err = errors.Join(err, r.ReportSpared())
	for _, t := range r.Hosts {
		// A host outside this run cannot be asked for its addresses.
		if r.Operation.lead && len(r.Operation.Roles) == 0 && (t.Err == nil || r.CanSpare(t)) &&
			!errors.Is(t.Err, ErrGone) && !isWithout(t) && !t.HasAddresses() {
			err = errors.Join(err, &task.AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.Has4()})
		}
	}
	return err
}

// FindTargets creates the hosts of the inventory that have a role.
func (r *Run) FindTargets() error {
	for _, h := range r.Options.Inventory.Hosts() {
		if len(h.Roles) > 0 {
			r.Hosts = append(r.Hosts, r.NewHost(h))
			r.Sessions[h.Name] = new(Session)
		}
	}
	for _, name := range r.Scope.Hosts {
		if r.HostNamed(name) == nil {
			return &LimitError{Flag: "--limit", Host: name}
		}
	}
	for _, name := range r.Scope.Without {
		t := r.HostNamed(name)
		if t == nil {
			return &LimitError{Flag: "--without", Host: name}
		}
		t.Err = ErrWithout
	}
	return nil
}

// A LimitError means that a flag names a host without a role in the inventory.
type LimitError struct{ Flag, Host string }

// Error names the host.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: there is no host %q with a role in the inventory", e.Flag, e.Host)
}

// Needed returns the hosts that this run needs: all of them, or those in its scope and those for tasks that run once.
// Before the lead is known, every control plane may be the lead.
func (r *Run) Needed() []*task.Host {
	if len(r.Operation.Roles) > 0 {
		return slices.DeleteFunc(r.WithRole(r.Operation.Roles...),
			func(t *task.Host) bool { return slices.Contains(r.Excluded, t.Name) })
	}
	if r.Scope.Whole() {
		return slices.DeleteFunc(slices.Clone(r.Hosts), isWithout)
	}
	var list []*task.Host
	for _, t := range r.Hosts {
		if r.Operation.narrow && !r.IsWanted(t) {
			continue
		}
		once := t == r.LeadHost || r.LeadHost == nil && t.Is(manifest.RoleControlPlane) || r.IsRegistry(t)
		if (once || r.IsWanted(t)) && !isWithout(t) && (t.Err == nil || !r.CanSpare(t)) {
			list = append(list, t)
		}
	}
	return list
}

// OnAll is Site.OnAll, and closes idle connections of a run with many hosts.
func (r *Run) OnAll(targets []*task.Host, do func(i int, t *task.Host) error) error {
	return r.Site.OnAll(targets, func(i int, t *task.Host) error {
		defer r.CloseIdle(t)
		return do(i, t)
	})
}

// A Session holds a run's connection to a host.
type Session struct {
	lazy  *LazyHost        // behind Host.Conn
	SSH   *host.Algorithms // nil without SSH
	Known precheck.Host    // findings of a precheck
}

// ConnectTo connects to a host and puts the helper on it.
func (r *Run) ConnectTo(ctx context.Context, t *task.Host) error {
	h, err := r.Options.Dial(ctx, t.Host)
	if err != nil {
		return err
	}
	if algorithms, ok := host.AlgorithmsOf(h); ok {
		r.Sessions[t.Name].SSH = &algorithms
	}
	dial := func(ctx context.Context) (host.Host, error) { return r.Options.Dial(ctx, t.Host) }
	far := &LazyHost{Name: t.Name, Dial: dial, conn: h}
	r.Sessions[t.Name].lazy = far
	t.Conn = &Journaled{Host: far, Watch: r.Watch(t.Name), Journal: r.Journal}
	if !r.Operation.helper {
		return nil
	}
	if t.Arch, err = host.Arch(ctx, t.Conn); err != nil {
		return err
	}
	helper, err := r.Options.Helper(t.Arch)
	if err != nil {
		return err
	}
	if _, err := host.PutHelper(task.DescribedAs(ctx, "put "+host.HelperPath), t.Conn, helper); err != nil {
		return err
	}
	if t.HasAddresses() {
		return nil
	}
	facts, err := t.Facts(ctx, node.Probe{})
	if err != nil {
		return err
	}
	if FindAddresses(t, &facts); !t.HasAddresses() {
		return &task.AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.Has4()}
	}
	return nil
}

// lockAll locks the connected hosts; release releases the acquired locks even after an error. A dry run locks nothing.
func (r *Run) lockAll(ctx context.Context) (release func(), err error) {
	var releases []func()
	release = func() {
		for _, one := range releases {
			one()
		}
	}
	if r.DryRun {
		return release, nil
	}
	by := task.ThisOwner(r.Now())
	ctx = task.InTask(ctx, "lock")
	err = r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
		one, err := Lock(ctx, t, by)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			releases = append(releases, one)
		}
		return err
	})
	return release, err
}

// FindAddresses derives addresses that the inventory does not name from the host's facts.
func FindAddresses(t *task.Host, f *node.Facts) {
	if !t.IP.IsValid() {
		t.IP = precheck.AddressFor(t.Site.Cluster, t.Host, f)
	}
	if t.Site.Has4() && t.Site.Has6() && !t.IP6.IsValid() {
		t.IP6 = precheck.Address6(t.Host, f)
	}
}

// Disconnect closes all connections.
func (r *Run) Disconnect() {
	for _, t := range r.Connected() {
		_ = t.Conn.Close() // all commands have returned
	}
}
