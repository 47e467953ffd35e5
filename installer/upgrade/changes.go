package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// A Change is a component of running nodes that a bundle replaces or configures anew.
type Change struct {
	// Component is the name of its task: containerd, kubelet, flannel and so on.
	Component string
	// From and To are its versions, "" if unknown.
	From, To string
	// Nodes are the nodes or hosts of etcd to change. A pod network has none: its DaemonSet replaces its pods on all
	// nodes.
	Nodes []string
}

// String returns the change on one line.
func (c Change) String() string {
	text := c.Component
	switch {
	case c.From != c.To && c.From != "" && c.To != "":
		text += " " + c.From + " -> " + c.To
	case len(c.Nodes) > 0:
		text += " (another program or configuration)"
	}
	if len(c.Nodes) > 0 {
		text += " on " + someNames(c.Nodes)
	}
	return text
}

// someNames joins the first names and counts the others.
func someNames(names []string) string {
	const most = 8 // names that fit into a line
	return plain.Few(names, most)
}

// A ChangesError means that install would replace the runtime, the kubelet, the pod network or the minor release of
// external etcd of a running cluster.
type ChangesError struct {
	Cluster string
	Changes []Change
}

// Error lists the changes.
func (e *ChangesError) Error() string {
	text := "cluster " + e.Cluster + " is running, and install does not replace on all nodes at once:"
	for _, c := range e.Changes {
		text += "\n  " + c.String()
	}
	return text
}

// Hint returns the remedy.
func (e *ChangesError) Hint() string {
	return "nothing was changed; kkbundle upgrade -i INVENTORY BUNDLE, with the same files, makes these changes node by node, also at the same version of Kubernetes; " +
		"for everything else of the bundle, leave them out of install (--tags, --list prints the names)"
}

// CheckChanges refuses, before anything is changed, an installation that would restart runtimes or kubelets of nodes,
// or replace the pod network or external etcd by another version: all nodes would get it at once. An upgrade does it
// node by node, and saves etcd first.
func CheckChanges(ctx context.Context, r *engine.Run, phases []task.Phase) error {
	first := r.FirstControlPlane()
	if r.Cluster.Kubernetes.Distribution != manifest.DistributionKubernetes || first.Conn == nil || first.Err != nil ||
		r.Bundle == nil {
		return nil
	}
	if begun, err := member.IsMember(ctx, first); err != nil || !begun {
		return err
	}
	changes, err := nodeChanges(ctx, r, wantedHosts(r, manifest.RoleCluster),
		func(name string) bool { return hasTask(phases, name) })
	if err != nil {
		return err
	}
	network, err := networkChange(ctx, first)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		network = nil // an installation may repair the API server
	}
	if network != nil && hasTask(phases, network.Component) {
		changes = append(changes, *network)
	}
	if hasTask(phases, "etcd") {
		if err := checkExternalEtcd(ctx, r); err != nil {
			return err
		}
		members, err := etcdChanges(ctx, r)
		if err != nil {
			return err
		}
		changes = append(changes, slices.DeleteFunc(members,
			func(c Change) bool { return majorMinor(c.From) == majorMinor(c.To) })...)
	}
	if len(changes) == 0 {
		return nil
	}
	return &ChangesError{Cluster: r.Cluster.Metadata.Name, Changes: changes}
}

// wantedHosts returns the hosts with a role that answer and that the run works on.
func wantedHosts(r *engine.Run, role manifest.Role) []*task.Host {
	return slices.DeleteFunc(r.Connected(role), func(t *task.Host) bool { return t.Err != nil || !r.IsWanted(t) })
}

func hasTask(phases []task.Phase, name string) bool {
	return slices.ContainsFunc(phases, func(p task.Phase) bool {
		return slices.ContainsFunc(p.Tasks, func(t task.Task) bool { return t.Name == name })
	})
}

// nodeChanges returns the changes of runtimes and kubelets on hosts that are nodes, of tasks that are wanted.
func nodeChanges(ctx context.Context, r *engine.Run, hosts []*task.Host,
	wanted func(name string) bool,
) ([]Change, error) {
	found := make([][]string, len(hosts)) // names of tasks
	err := r.OnAll(hosts, func(i int, t *task.Host) error {
		_, _, joined, err := member.Recorded(ctx, t)
		if err != nil || !joined {
			return err
		}
		_, adopted, err := marks.FindAdoption(ctx, t)
		if err != nil {
			return err
		}
		for _, step := range nodePrograms(t.Site.Cluster) {
			if !wanted(step.Name) {
				continue
			}
			otherwise, err := isReplaced(ctx, t, step, adopted)
			if _, missing := errors.AsType[*task.MissingError](err); missing {
				continue // the precheck names all missing items
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", t.Name, step.Name, err)
			}
			if otherwise {
				found[i] = append(found[i], step.Name)
			}
		}
		return nil
	})
	if err != nil || !slices.ContainsFunc(found, func(names []string) bool { return len(names) > 0 }) {
		return nil, err
	}
	nodes, err := r.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	} // without an API server the running versions are unknown
	var changes []Change
	for i, t := range hosts {
		for _, name := range found[i] {
			changes = withChange(changes, changeOf(r.Cluster, name, kube.FindNode(nodes, t.Name)), t.Name)
		}
	}
	return changes, nil
}

// isReplaced reports whether a run would replace what a task is about. On an adopted node, that is another tool's at
// first.
func isReplaced(ctx context.Context, t *task.Host, step task.Task, adopted bool) (bool, error) {
	if adopted {
		if installed, err := marks.Setting(step.Name).Exists(ctx, t); err != nil || !installed {
			return true, err
		}
	}
	return step.IsOtherwise(ctx, t)
}

// withChange adds the change of a host. Hosts with the same change share one.
func withChange(changes []Change, c Change, name string) []Change {
	if n := slices.IndexFunc(changes,
		func(o Change) bool { return o.Component == c.Component && o.From == c.From }); n >= 0 {
		changes[n].Nodes = append(changes[n].Nodes, name)
		return changes
	}
	c.Nodes = []string{name}
	return append(changes, c)
}

// changeOf returns the change of a component on a node, which may be nil.
func changeOf(c *manifest.Cluster, name string, n *corev1.Node) Change {
	change := Change{Component: name}
	if name == "kubelet" {
		change.To = c.Kubernetes.Version
	} else if version, err := catalog.Version(c, name); err == nil {
		change.To = "v" + strings.TrimPrefix(version, "v")
	}
	if n == nil {
		return change
	}
	info := n.Status.NodeInfo
	runtime, version, _ := strings.Cut(info.ContainerRuntimeVersion, "://") // containerd://2.1.4, cri-o://1.34.1
	switch name {
	case "kubelet":
		change.From = info.KubeletVersion
	case strings.ReplaceAll(runtime, "-", ""):
		change.From = "v" + strings.TrimPrefix(version, "v")
	}
	return change
}

// networkChange returns the change of the pod network's version, or nil.
func networkChange(ctx context.Context, first *task.Host) (*Change, error) {
	name, deployed, bundled, err := addon.NetworkVersions(ctx, first)
	if err != nil || deployed == "" || deployed == bundled {
		return nil, err
	}
	return &Change{Component: name, From: plain.Line(deployed), To: plain.Line(bundled)}, nil
}

// changes returns the changes of an upgrade's nodes besides the version of Kubernetes, of the pod network and of
// external etcd.
func (u *upgrade) changes(ctx context.Context) ([]Change, error) {
	hosts := slices.DeleteFunc(u.nodes(), func(t *task.Host) bool { return t.Conn == nil || t.Err != nil })
	changes, err := nodeChanges(ctx, u.Run, hosts, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	// The plan names the version of Kubernetes for each node.
	changes = slices.DeleteFunc(changes, func(c Change) bool { return c.Component == "kubelet" && c.From != c.To })
	var network *Change
	if unanswered := task.Eventually(ctx, apiWait, func(ctx context.Context) error {
		if network, err = networkChange(ctx, u.FirstControlPlane()); errors.As(err, new(*addon.DeployedError)) {
			return err
		}
		return nil
	}); unanswered != nil {
		return nil, unanswered
	}
	if err != nil {
		return nil, err
	}
	if network != nil {
		changes = append(changes, *network)
	}
	members, err := etcdChanges(ctx, u.Run)
	return append(changes, members...), err
}
