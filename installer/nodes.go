package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// errGone stands for a host that the operator says is gone.
var errGone = errors.New("it is gone")

// AddNodes makes those hosts of the inventory nodes that are none yet, or of them only the named ones, and lets the other
// hosts know. Only the new hosts are checked and changed beside that. agree is told what will be done, in sentences, and
// ends it with an error; it is not called if there is nothing to do. An interrupted AddNodes is continued by the next one.
func AddNodes(ctx context.Context, o Options, names []string, agree func([]string) error) (Report, error) {
	phases, err := o.selected(Plan(o.Cluster))
	if err != nil {
		return Report{}, err
	}
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall()); err != nil {
		return Report{}, err
	}
	r, err := newInstall(o, changing())
	if err != nil {
		return Report{}, err
	}
	r.scope.Changing, r.scope.Sparing = names, true
	return r.start(ctx, func(ctx context.Context) error {
		looking := inTask(ctx, "connect")
		if err := r.mustKnow(names); err != nil {
			return err
		}
		if err := r.checkMembers(looking); err != nil {
			return err
		}
		if begun, err := r.firstControlPlane().isMember(looking); err != nil || !begun {
			return errors.Join(err, noCluster(begun, err))
		}
		if err := r.checkForeign(looking); err != nil {
			return err
		}
		fresh, err := r.newcomers(looking)
		if err != nil || len(fresh) == 0 {
			return err
		}
		if err := agree(r.additions(fresh)); err != nil {
			return err
		}
		r.renew(func(s *Site) { s.scope.Hosts, s.scope.Following = fresh, true })
		return r.phases(ctx, phases)
	})
}

// A NoClusterError says that something was to be done with a cluster that is not there.
type NoClusterError struct{ Reason string }

// Error returns the reason.
func (e *NoClusterError) Error() string { return e.Reason }

// Hint says what makes one.
func (e *NoClusterError) Hint() string {
	return "kkbundle install makes one of all hosts of the inventory; if there is one already, this is not its inventory"
}

func noCluster(begun bool, err error) error {
	if begun || err != nil {
		return nil
	}
	return &NoClusterError{Reason: "there is no cluster yet"}
}

// mustKnow refuses names that the inventory does not have.
func (r *run) mustKnow(names []string) error {
	for _, name := range names {
		if r.target(name) == nil {
			return fmt.Errorf("there is no host %q with a role in the inventory", name)
		}
	}
	return nil
}

// newcomers returns the hosts that are no nodes yet, or that have nothing of ours where they shall be none; of the named
// ones, if there are any.
func (r *run) newcomers(ctx context.Context) ([]string, error) {
	nodes, err := r.firstControlPlane().kube().Nodes(ctx)
	if err != nil {
		return nil, err
	}
	isNode := func(name string) bool { return kube.FindNode(nodes, name) != nil }
	fresh := make([]bool, len(r.targets))
	err = r.onAll(r.targets, func(i int, t *Target) (err error) {
		switch {
		case len(r.scope.Changing) > 0 && !slices.Contains(r.scope.Changing, t.Name):
		case t.failure != nil && isNode(t.Name): // it is a node that is down
		case t.failure != nil:
			return &AbsentError{Host: t.Name, Err: t.failure}
		case t.Is(manifest.RoleCluster):
			fresh[i], err = t.isNoMember(ctx)
			if err == nil && !fresh[i] && !isNode(t.Name) {
				err = &NamelessError{Host: t.Name, Node: t.nodeOf(nodes)}
			}
		default:
			fresh[i], err = notInstalled(ctx, t)
		}
		return err
	})
	var names []string
	for i, t := range r.targets {
		if fresh[i] {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// nodeOf returns the name of the node that has the host's address, "" if none has.
func (t *Target) nodeOf(nodes []corev1.Node) string {
	for _, n := range nodes {
		if kube.HasAddress(&n, t.IP.String()) {
			return n.Name
		}
	}
	return ""
}

// checkNames refuses, before anything is changed, hosts that are nodes under other names than the inventory gives them: a host
// that was renamed there, or two whose addresses were mixed up. Where the cluster does not answer nobody can tell, and an
// installation is what brings it back.
func (r *run) checkNames(ctx context.Context) error {
	first := r.firstControlPlane()
	if first.on == nil || first.failure != nil {
		return nil
	}
	if begun, err := first.isMember(ctx); err != nil || !begun {
		return err
	}
	nodes, err := first.kube().Nodes(ctx)
	if err != nil {
		return context.Cause(ctx)
	}
	return r.onAll(r.connected(manifest.RoleCluster), func(_ int, t *Target) error {
		name := t.nodeOf(nodes)
		if name == "" || name == t.Name || t.failure != nil {
			return nil
		}
		if member, err := t.isMember(ctx); err != nil || !member {
			return err
		}
		return &NamelessError{Host: t.Name, Node: name}
	})
}

// An AbsentError is a host of the inventory that is no node and cannot be reached to become one.
type AbsentError struct {
	Host string
	Err  error
}

// Error says both.
func (e *AbsentError) Error() string {
	return e.Host + " is no node of the cluster and cannot be made one: " + e.Err.Error()
}

// Unwrap returns why it cannot be reached.
func (e *AbsentError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *AbsentError) Hint() string {
	return "bring it up, name the hosts to add, or take " + e.Host + " out of the inventory if it is gone for good"
}

// A NamelessError is a host that has joined the cluster under another name, or whose node was deleted by hand.
type NamelessError struct {
	Host string
	// Node is the name of the node that has the host's address, "" if none has.
	Node string
}

// Error names the host and what is known of its node.
func (e *NamelessError) Error() string {
	if e.Node != "" {
		return fmt.Sprintf("%s of the inventory is the node %s of the cluster: it was renamed", e.Host, e.Node)
	}
	return fmt.Sprintf("%s has joined the cluster, which has no node of that name: it was deleted there by hand", e.Host)
}

// Hint says what to do about it.
func (e *NamelessError) Hint() string {
	if e.Node != "" {
		return "give the host its name back; a node gets another one by being deleted (kkbundle nodes delete " + e.Node + ") and added"
	}
	return "kkbundle reset --limit " + e.Host + " takes off the host what it had joined with; then add it"
}

func (t *Target) isNoMember(ctx context.Context) (bool, error) {
	member, err := t.isMember(ctx)
	return !member, err
}

// additions says what adding hosts means.
func (r *run) additions(fresh []string) []string {
	var list []string
	for _, name := range fresh {
		list = append(list, fmt.Sprintf("%s becomes a %s", name, r.target(name).calling()))
	}
	others := slices.DeleteFunc(slices.Clone(r.targets), func(t *Target) bool { return slices.Contains(fresh, t.Name) || t.on == nil })
	if len(others) > 0 {
		list = append(list, fmt.Sprintf("%s learn of it, in /etc/hosts and, where they have one, in the balancer", namesOf(others)))
	}
	return append(list, r.unreached()...)
}

// unreached names the hosts that the run goes on without.
func (r *run) unreached() []string {
	var list []string
	for _, t := range r.targets {
		if t.failure != nil && !slices.Contains(r.scope.Changing, t.Name) {
			list = append(list, fmt.Sprintf("%s is out of reach and is left as it is: %v. Run kkbundle install when it is back", t.Name, t.failure))
		}
	}
	return list
}

func namesOf(targets []*Target) string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Name)
	}
	return strings.Join(names, ", ")
}

// calling is what a host is in a cluster, in words.
func (t *Target) calling() string {
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

// follow lets the hosts that stay know which hosts there are.
func (r *run) follow(ctx context.Context, phases []Phase) error {
	var errs []error
	for _, p := range phases {
		for _, task := range p.Tasks {
			if !task.Follows {
				continue
			}
			_, failed := r.group(ctx, p.Name, []Task{task})
			errs = append(errs, failed...)
		}
	}
	return errors.Join(errs...)
}

// endpointIs tells whether the cluster's endpoint is an address or the name of the host itself.
func (t *Target) endpointIs() bool {
	name, _, err := net.SplitHostPort(t.run.endpoint())
	return err == nil && (name == t.Name || name == t.Address || t.IP.IsValid() && name == t.IP.String())
}
