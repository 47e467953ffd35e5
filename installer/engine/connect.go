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

// Connect makes the targets, connects to those that this run needs, and puts the helper on them. The error joins those
// of all hosts, because the operator can mend them all at once.
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
		if r.Operation.lead && len(r.Operation.Roles) == 0 && (t.Err == nil || r.CanSpare(t)) && !errors.Is(t.Err, ErrGone) && !t.HasAddresses() { // a host that is left out of this run cannot be asked
			err = errors.Join(err, &task.AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.Has4()})
		}
	}
	return err
}

// FindTargets makes the targets out of the inventory.
func (r *Run) FindTargets() error {
	for _, h := range r.Options.Inventory.Hosts() {
		if len(h.Roles) > 0 {
			r.Hosts = append(r.Hosts, r.NewHost(h))
			r.Sessions[h.Name] = new(Session)
		}
	}
	for _, name := range r.Scope.Hosts {
		if !slices.ContainsFunc(r.Hosts, func(t *task.Host) bool { return t.Name == name }) {
			return &LimitError{Host: name}
		}
	}
	return nil
}

// A LimitError says that a run is limited to a host that the inventory does not have, or has in no group.
type LimitError struct{ Host string }

// Error names the host.
func (e *LimitError) Error() string {
	return fmt.Sprintf("--limit: there is no host %q with a role in the inventory", e.Host)
}

// Needed returns the hosts that this run cannot do without: all of them, or those that it is limited to and those where
// tasks run once: until it is known which control plane that is, every one that was not lost.
func (r *Run) Needed() []*task.Host {
	if len(r.Operation.Roles) > 0 {
		return slices.DeleteFunc(r.WithRole(r.Operation.Roles...), func(t *task.Host) bool { return slices.Contains(r.Excluded, t.Name) })
	}
	if r.Scope.Whole() {
		return r.Hosts
	}
	var list []*task.Host
	for _, t := range r.Hosts {
		if r.Operation.narrow && !r.IsWanted(t) {
			continue
		}
		once := t == r.LeadHost || r.LeadHost == nil && t.Is(manifest.RoleControlPlane) || r.IsRegistry(t)
		if (once || r.IsWanted(t)) && (t.Err == nil || !r.CanSpare(t)) {
			list = append(list, t)
		}
	}
	return list
}

// OnAll does something on several hosts at a time, and ends connections that are not used for a while where the run has many.
func (r *Run) OnAll(targets []*task.Host, do func(i int, t *task.Host) error) error {
	return r.Site.OnAll(targets, func(i int, t *task.Host) error {
		defer r.CloseIdle(t)
		return do(i, t)
	})
}

// A Session is how a run is connected to a host.
type Session struct {
	lazy  *LazyHost        // behind Target.on
	SSH   *host.Algorithms // nil without SSH
	Known precheck.Host    // what a precheck has found
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
	if t.FindAddresses(&facts); !t.HasAddresses() {
		return &task.AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.Has4()}
	}
	return nil
}

// lockAll locks the connected hosts and returns what releases those that it could lock. A dry run locks nothing.
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

func (r *Run) Disconnect() {
	for _, t := range r.Connected() {
		_ = t.Conn.Close() // everything that was done has been answered
	}
}
