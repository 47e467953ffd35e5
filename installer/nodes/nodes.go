package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Add joins the inventory's new hosts to the cluster, or only the named ones, and tells the other hosts. Besides
// that, only new hosts are checked and changed. agree gets the planned changes in sentences, and its error ends the
// run; it is not called if there is nothing to do. An interrupted AddNodes is continued by the next one.
func Add(ctx context.Context, o engine.Options, names []string, agree func([]string) error) (engine.Report, error) {
	phases, err := o.Selected(plan.Plan(o.Cluster))
	if err != nil {
		return engine.Report{}, err
	}
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall()); err != nil {
		return engine.Report{}, err
	}
	r, err := begin.NewFitting(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	r.Scope.Changing, r.Scope.SkipUnreachable = names, true
	return r.Start(ctx, func(ctx context.Context) error {
		looking := task.InTask(ctx, "connect")
		if err := mustKnow(r, names); err != nil {
			return err
		}
		if err := begin.CheckMembers(looking, r); err != nil {
			return err
		}
		if begun, err := member.IsMember(looking, r.FirstControlPlane()); err != nil || !begun {
			return errors.Join(err, begin.NoCluster(begun, err))
		}
		if err := begin.CheckForeign(looking, r); err != nil {
			return err
		}
		fresh, err := newHosts(looking, r)
		if err != nil {
			return err
		}
		joined, err := unfinished(looking, r, fresh)
		if err != nil || len(fresh)+len(joined) == 0 {
			return err
		}
		if err := checkNameservers(looking, r, fresh); err != nil {
			return err
		}
		if err := engine.CheckHooks(r.Site); err != nil {
			return err
		}
		if err := agree(additions(r, fresh, joined)); err != nil {
			return err
		}
		return add(ctx, r, phases, fresh, joined)
	})
}

// add runs all phases for fresh hosts, and for hosts that have joined the one that they lack: the rest of the plan
// would change what runs there, on all of them at once.
func add(ctx context.Context, r *engine.Run, phases []task.Phase, fresh, joined []string) error {
	begun := slices.Concat(fresh, joined)
	if err := eachOf(r, fresh, func(t *task.Host) error {
		return t.Write(ctx, task.File{Path: marks.Adding, Mode: 0o600})
	}); err != nil {
		return err
	}
	if len(fresh) > 0 {
		r.ChangeSite(func(s *task.Site) { s.Scope.Hosts, s.Scope.RunFollowers = fresh, true })
		if err := r.Phases(ctx, phases); err != nil {
			return err
		}
	}
	if len(joined) > 0 {
		r.ChangeSite(func(s *task.Site) { s.Scope.Hosts, s.Scope.RunFollowers = joined, false })
		last := slices.DeleteFunc(slices.Clone(phases), func(p task.Phase) bool { return p.Name != plan.LastPhase })
		if err := r.Phases(ctx, last); err != nil {
			return err
		}
	}
	return eachOf(r, begun, func(t *task.Host) error { return t.Remove(ctx, marks.Adding) })
}

// eachOf does something on hosts, but in a dry run.
func eachOf(r *engine.Run, names []string, do func(*task.Host) error) error {
	if r.DryRun {
		return nil
	}
	var hosts []*task.Host
	for _, name := range names {
		hosts = append(hosts, r.HostNamed(name))
	}
	return r.OnAll(hosts, func(_ int, t *task.Host) error { return do(t) })
}

// mustKnow refuses names that are not in the inventory.
func mustKnow(r *engine.Run, names []string) error {
	for _, name := range names {
		if r.HostNamed(name) == nil {
			return fmt.Errorf("there is no host %q with a role in the inventory", name)
		}
	}
	return nil
}

// newHosts returns the hosts (of the named ones, if any) that are not nodes yet, or that have other roles and no
// installation.
func newHosts(ctx context.Context, r *engine.Run) ([]string, error) {
	nodes, err := r.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil {
		return nil, err
	}
	isNode := func(name string) bool { return kube.FindNode(nodes, name) != nil }
	fresh := make([]bool, len(r.Hosts))
	err = r.OnAll(r.Hosts, func(i int, t *task.Host) (err error) {
		switch {
		case len(r.Scope.Changing) > 0 && !slices.Contains(r.Scope.Changing, t.Name):
		case t.Err != nil && isNode(t.Name): // a node that is down
		case t.Err != nil:
			return plain.Advise(fmt.Errorf("%s is not a node of the cluster and cannot be reached to become one: %w",
				t.Name, t.Err),
				"bring it up, name the hosts to add, or take "+t.Name+" out of the inventory if it is gone for good")
		case t.Is(manifest.RoleCluster):
			var joined bool
			joined, err = member.IsMember(ctx, t)
			if fresh[i] = !joined; err == nil && joined && !isNode(t.Name) {
				err = &begin.NamelessError{Host: t.Name, Node: begin.NodeOf(t, nodes)}
			}
		default:
			fresh[i], err = begin.NotInstalled(ctx, t)
		}
		return err
	})
	var names []string
	for i, t := range r.Hosts {
		if fresh[i] {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// unfinished returns the nodes (of the named ones, if any) that have joined in a run that did not come to its end.
func unfinished(ctx context.Context, r *engine.Run, fresh []string) ([]string, error) {
	left := make([]bool, len(r.Hosts))
	err := r.OnAll(r.Hosts, func(i int, t *task.Host) (err error) {
		if t.Err == nil && !slices.Contains(fresh, t.Name) &&
			(len(r.Scope.Changing) == 0 || slices.Contains(r.Scope.Changing, t.Name)) {
			left[i], err = t.AnyExists(ctx, marks.Adding)
		}
		return err
	})
	var names []string
	for i, t := range r.Hosts {
		if left[i] {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// checkNameservers refuses new hosts that would end the forwarding of names outside the cluster.
func checkNameservers(ctx context.Context, r *engine.Run, fresh []string) error {
	if r.Cluster.Kubernetes.Distribution != manifest.DistributionKubernetes {
		return nil
	}
	var hosts []*task.Host
	for _, name := range fresh {
		hosts = append(hosts, r.HostNamed(name))
	}
	return addon.CheckNameservers(ctx, r.FirstControlPlane(), hosts)
}

// additions describes the changes of adding hosts, and of going on with those that have joined.
func additions(r *engine.Run, fresh, joined []string) []string {
	var list []string
	for _, name := range joined {
		list = append(list, name+" has joined, and its scripts of "+engine.PostInstall+" have not all run: they run")
	}
	if len(fresh) == 0 {
		return append(list, unreached(r)...)
	}
	for _, name := range fresh {
		list = append(list, fmt.Sprintf("%s becomes a %s", name, roleText(r.HostNamed(name))))
	}
	others := slices.DeleteFunc(slices.Clone(r.Hosts),
		func(t *task.Host) bool { return slices.Contains(fresh, t.Name) || t.Conn == nil })
	if len(others) > 0 {
		list = append(list, fmt.Sprintf("%s get it in /etc/hosts and, where they have one, in the balancer",
			namesOf(others)))
	}
	return append(list, unreached(r)...)
}

// unreached names the hosts that the run goes on without.
func unreached(r *engine.Run) []string {
	var list []string
	for _, t := range r.Hosts {
		if t.Err != nil && !slices.Contains(r.Scope.Changing, t.Name) {
			list = append(list, fmt.Sprintf(
				"%s is unreachable and stays unchanged: %v. Run kkbundle install when it is back", t.Name, t.Err))
		}
	}
	return list
}

func namesOf(targets []*task.Host) string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Name)
	}
	return strings.Join(names, ", ")
}

// roleText names a host's role in the cluster.
func roleText(t *task.Host) string {
	switch {
	case t.Is(manifest.RoleControlPlane):
		return "control plane"
	case t.Is(manifest.RoleWorker):
		return "worker"
	}
	return "host with " + strings.Join(roleNames(t.Roles), ", ")
}

func roleNames(roles []manifest.Role) []string {
	var names []string
	for _, role := range roles {
		names = append(names, string(role))
	}
	return names
}

// follow tells the remaining hosts about the cluster's hosts.
func follow(ctx context.Context, r *engine.Run, phases []task.Phase) error {
	var errs []error
	for _, p := range phases {
		for _, step := range p.Tasks {
			if !step.Follows {
				continue
			}
			_, failed := r.Group(ctx, p.Name, []task.Task{step})
			errs = append(errs, failed...)
		}
	}
	return errors.Join(errs...)
}

// isEndpoint reports whether the cluster's endpoint is an address or the name of the host itself.
func isEndpoint(t *task.Host) bool {
	name, _, err := net.SplitHostPort(t.Site.Endpoint())
	return err == nil && (name == t.Name || name == t.Address || t.IP.IsValid() && name == t.IP.String())
}
