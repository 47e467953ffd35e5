package begin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A WithoutError means that a run cannot leave a host as it is.
type WithoutError struct{ Host, Reason, Advice string }

// Error names the host and the reason.
func (e *WithoutError) Error() string { return "--without " + e.Host + ": " + e.Reason }

// Hint returns the remedy.
func (e *WithoutError) Hint() string { return e.Advice }

// CheckWithout refuses to leave hosts as they are that the others depend on: the registry, and members of etcd unless
// more than half of them remain.
func CheckWithout(r *engine.Run) error {
	var errs []error
	members := r.WithRole(etcdRole(r.Cluster))
	remaining := len(members)
	for _, t := range r.Without() {
		if slices.Contains(members, t) {
			remaining--
		}
		if r.IsRegistry(t) {
			errs = append(errs, &WithoutError{
				t.Name, "the other hosts pull their images from it",
				"bring it back, or name another host under image_registry",
			})
		}
	}
	for _, t := range r.Without() {
		if slices.Contains(members, t) && 2*remaining <= len(members) {
			errs = append(errs, &WithoutError{
				t.Name, fmt.Sprintf("etcd has %d members, and the remaining %d are not more than half of them",
					len(members), remaining),
				"bring it back, or delete it for good: kkbundle nodes delete --unreachable " + t.Name,
			})
		}
	}
	return errors.Join(errs...)
}

// etcdRole returns the role of the hosts with members of etcd.
func etcdRole(c *manifest.Cluster) manifest.Role {
	if c.Etcd.Type == manifest.EtcdExternal {
		return manifest.RoleEtcd
	}
	return manifest.RoleControlPlane
}

// TellLeft warns of the hosts that the run has left as they are.
func TellLeft(r *engine.Run, left []string) {
	if len(left) == 0 {
		return
	}
	r.Tell(task.Event{
		Phase: task.VerifyPhase, Task: "without", State: task.Warned,
		Message: strings.Join(left, ", ") +
			" left as they are (--without): run the same command without this flag when they are back",
	})
}

// HostNamesOf returns the hosts' names.
func HostNamesOf(targets []*task.Host) []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Name)
	}
	return names
}
