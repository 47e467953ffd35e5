package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// connect makes the targets, connects to those that this run needs, and puts the helper on them. The error joins those
// of all hosts, because the operator can mend them all at once.
func (r *run) connect(ctx context.Context) error {
	if err := r.findTargets(); err != nil {
		return err
	}
	err := r.onAll(r.needed(), func(_ int, t *Target) error {
		if r.gone && slices.Contains(r.scope.Changing, t.Name) {
			t.failure = errGone
		} else {
			t.failure = r.connectTo(inTask(ctx, "connect"), t)
		}
		if r.canSpare(t) {
			if r.scope.Sparing && t.failure != nil {
				t.letGo()
			}
			return nil
		}
		return t.failure
	})
	err = errors.Join(err, r.spare())
	for _, t := range r.targets {
		if r.verb.lead && len(r.verb.roles) == 0 && (t.failure == nil || r.canSpare(t)) && !errors.Is(t.failure, errGone) && !t.isAddressed() { // a host that is left out of this run cannot be asked
			err = errors.Join(err, &AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.has4()})
		}
	}
	return err
}

// findTargets makes the targets out of the inventory.
func (r *run) findTargets() error {
	for _, h := range r.options.Inventory.Hosts() {
		if len(h.Roles) > 0 {
			r.targets = append(r.targets, r.newTarget(h))
			r.sessions[h.Name] = new(session)
		}
	}
	for _, name := range r.scope.Hosts {
		if !slices.ContainsFunc(r.targets, func(t *Target) bool { return t.Name == name }) {
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

// needed returns the hosts that this run cannot do without: all of them, or those that it is limited to and those where
// tasks run once: until it is known which control plane that is, every one that was not lost.
func (r *run) needed() []*Target {
	if len(r.verb.roles) > 0 {
		return slices.DeleteFunc(r.withRole(r.verb.roles...), func(t *Target) bool { return slices.Contains(r.without, t.Name) })
	}
	if r.scope.Whole() {
		return r.targets
	}
	var list []*Target
	for _, t := range r.targets {
		if r.verb.narrow && !r.isWanted(t) {
			continue
		}
		once := t == r.speaker || r.speaker == nil && t.Is(manifest.RoleControlPlane) || r.isRegistry(t)
		if (once || r.isWanted(t)) && (t.failure == nil || !r.canSpare(t)) {
			list = append(list, t)
		}
	}
	return list
}

// onAll does something on several hosts at a time, and ends connections that are not used for a while where the run has many.
func (r *run) onAll(targets []*Target, do func(i int, t *Target) error) error {
	return r.Site.onAll(targets, func(i int, t *Target) error {
		defer r.part(t)
		return do(i, t)
	})
}

// A session is how a run is connected to a host.
type session struct {
	far   *farHost         // behind Target.on
	ssh   *host.Algorithms // nil without SSH
	known precheck.Host    // what a precheck has found
}

// connectTo connects to a host and puts the helper on it.
func (r *run) connectTo(ctx context.Context, t *Target) error {
	h, err := r.options.Dial(ctx, t.Host)
	if err != nil {
		return err
	}
	if algorithms, ok := host.AlgorithmsOf(h); ok {
		r.sessions[t.Name].ssh = &algorithms
	}
	dial := func(ctx context.Context) (host.Host, error) { return r.options.Dial(ctx, t.Host) }
	far := &farHost{name: t.Name, dial: dial, on: h}
	r.sessions[t.Name].far = far
	t.on = &journaled{Host: far, watch: r.watch(t.Name), journal: r.journal}
	if !r.verb.helper {
		return nil
	}
	if t.Arch, err = host.Arch(ctx, t.on); err != nil {
		return err
	}
	helper, err := r.options.Helper(t.Arch)
	if err != nil {
		return err
	}
	if _, err := host.PutHelper(describedAs(ctx, "put "+host.HelperPath), t.on, helper); err != nil {
		return err
	}
	if t.isAddressed() {
		return nil
	}
	facts, err := t.facts(ctx, node.Probe{})
	if err != nil {
		return err
	}
	if t.findAddresses(&facts); !t.isAddressed() {
		return &AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.has4()}
	}
	return nil
}

// An AddressError says that a host's address in the cluster is not known.
type AddressError struct {
	Host string
	// Six says that it is the IPv6 address.
	Six bool
}

// Error names the host.
func (e *AddressError) Error() string {
	if e.Six {
		return e.Host + ": which of its IPv6 addresses the cluster uses is not known: the inventory does not say, and it has none or several"
	}
	return e.Host + ": which of its addresses the cluster uses is not known: the inventory does not say, and there is no default route to tell by"
}

// Hint says what to do about it.
func (e *AddressError) Hint() string {
	if e.Six {
		return "give the host internalIPv6 in the inventory"
	}
	return "give the host internalIPv4 in the inventory"
}

// lockAll locks the connected hosts and returns what releases those that it could lock. A dry run locks nothing.
func (r *run) lockAll(ctx context.Context) (release func(), err error) {
	var releases []func()
	release = func() {
		for _, one := range releases {
			one()
		}
	}
	if r.DryRun {
		return release, nil
	}
	by := thisOwner(r.Now())
	ctx = inTask(ctx, "lock")
	err = r.onAll(r.connected(), func(_ int, t *Target) error {
		one, err := t.lock(ctx, by)
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			releases = append(releases, one)
		}
		return err
	})
	return release, err
}

func (r *run) disconnect() {
	for _, t := range r.connected() {
		_ = t.on.Close() // everything that was done has been answered
	}
}
