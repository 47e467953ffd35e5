package handover

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Target is where a cluster goes: names of objects in the management cluster, which are there or are made by the
// operator.
type Target struct {
	// Namespace is the pool of hosts.
	Namespace string
	// Bundle is the KKBundle, from which later machines are made.
	Bundle string
	// Registry is the address of the registry for later machines; "" is that of the cluster file, if it names one.
	Registry string
	// RegistrySecret, Login and HostKeys are Secrets: the registry's login, that of SSH, and the keys of the hosts.
	// Without HostKeys, the keys that the hosts have are written into a Secret.
	RegistrySecret, Login, HostKeys string
}

// Check reports names that no object has.
func (t Target) Check() error {
	for _, one := range []struct{ flag, name string }{
		{"namespace", t.Namespace},
		{"bundle", t.Bundle},
		{"registry-secret", t.RegistrySecret},
		{"login", t.Login},
		{"host-keys", t.HostKeys},
	} {
		if one.name == "" && one.flag == "host-keys" {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(one.name); len(problems) > 0 {
			return fmt.Errorf("--%s: %q is no name of an object: %s", one.flag, one.name, problems[0])
		}
	}
	return nil
}

// machine returns the machine of Cluster API that a host becomes.
func (t Target) machine(c *manifest.Cluster, host string) task.Machine {
	return task.Machine(t.Namespace + "/" + c.Metadata.Name + "/" + host)
}

const phase = "handover"

// Write reads the cluster, and returns the objects of Cluster API for it as YAML, which has the keys of the cluster's
// authorities. Each host gets the mark of its machine, by which only its management cluster works on it from then on;
// nothing else is changed. A cluster that cannot be handed over is a *RefusedError, before a host is marked. A stopped
// one is continued by the same call.
func Write(ctx context.Context, o engine.Options, to Target) (report engine.Report, objects []byte, err error) {
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return engine.Report{}, nil, err
	}
	report, err = r.Start(ctx, func(ctx context.Context) error {
		found, err := look(task.InTask(ctx, "look"), r, to)
		if err != nil {
			return err
		}
		if err := found.refuse(); err != nil {
			return err
		}
		if objects, err = found.objects(); err != nil {
			return err
		}
		return r.Phases(ctx, []task.Phase{{Name: phase, Tasks: []task.Task{markTask(to)}}})
	})
	return report, objects, err
}

// Undo takes the marks of a handover from the hosts. They are a person's again, and the management cluster refuses to
// clean them. A cluster that the management cluster works on already is an *AtWorkError, before a mark is taken.
func Undo(ctx context.Context, o engine.Options, to Target) (engine.Report, error) {
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		if err := refuseAtWork(task.InTask(ctx, "look"), r.FirstControlPlane()); err != nil {
			return err
		}
		return r.Phases(ctx, []task.Phase{{Name: phase, Tasks: []task.Task{unmarkTask(to)}}})
	})
}

// An AtWorkError is a cluster that was unpaused after its handover: its nodes have the providerIDs of their machines.
type AtWorkError struct{ Nodes []string }

// Error names the nodes.
func (e *AtWorkError) Error() string {
	return "the handover is not undone, and nothing was changed: a management cluster works on " +
		strings.Join(e.Nodes, ", ") + " already"
}

// Hint returns the remedy.
func (*AtWorkError) Hint() string {
	return "change the cluster by its objects there; if that management cluster is lost for good, remove " +
		marks.Owner + " from each node"
}

// Refuses marks an error that ends a run before any change.
func (*AtWorkError) Refuses() {}

// refuseAtWork returns an AtWorkError if a node has the providerID of a machine, which the management cluster gives it.
func refuseAtWork(ctx context.Context, t *task.Host) error {
	live, err := t.Kube().Nodes(ctx)
	if err != nil {
		return err
	}
	var e AtWorkError
	for _, n := range live {
		if strings.HasPrefix(n.Spec.ProviderID, providerPrefix) {
			e.Nodes = append(e.Nodes, n.Name)
		}
	}
	if len(e.Nodes) == 0 {
		return nil
	}
	return &e
}

// marked reports whether the host has the mark of its machine. That of another one is an error.
func marked(ctx context.Context, t *task.Host, to Target) (bool, error) {
	has, err := begin.OwnerOf(ctx, t)
	want := to.machine(t.Site.Cluster, t.Name)
	if err == nil && has != "" && has != want {
		err = &begin.OwnedError{Host: t.Name, Has: has, Want: want}
	}
	return has == want, err
}

func markTask(to Target) task.Task {
	return task.Task{
		Name: "owner", Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return marked(ctx, t, to) },
		Do: func(ctx context.Context, t *task.Host) error {
			return begin.MarkOwner(ctx, t, to.machine(t.Site.Cluster, t.Name))
		},
	}
}

func unmarkTask(to Target) task.Task {
	return task.Task{
		Name: "owner", Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			has, err := marked(ctx, t, to)
			return !has, err
		},
		Do: func(ctx context.Context, t *task.Host) error { return t.Run(ctx, "rm", "-f", "--", marks.Owner) },
	}
}
