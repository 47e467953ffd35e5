package addon

import (
	"context"
	"slices"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// NetworkTasks installs the pod network, unless the distribution includes one.
func NetworkTasks(c *manifest.Cluster) []task.Task { return networkTasks(network.All(), c) }

func networkTasks(all network.Table, c *manifest.Cluster) []task.Task {
	if c.BringsNetwork() {
		return nil
	}
	var tasks []task.Task
	for _, n := range slices.Backward(all.Of(c)) { // one that adds to another comes after it
		switch {
		case n.Chart != nil:
			tasks = append(tasks, networkChartTasks(n, c)...)
		case n.Manifest != nil:
			tasks = append(tasks, networkManifestTask(n, c))
		}
	}
	return tasks
}

func networkChartTasks(n network.Network, c *manifest.Cluster) []task.Task {
	t := networkChart(n, c).task(n.Images...)
	for _, p := range n.Programs {
		t.Files = append(t.Files, task.Place{Component: p.Component, Path: p.Path, Mode: task.Executable})
	}
	t.Leaves = networkLeaves(n, c)
	if d := n.Chart.Definitions; d != nil && hasDefinitions(c, d) {
		return []task.Task{definitionsTask(n), t}
	}
	return []task.Task{t}
}

func networkManifestTask(n network.Network, c *manifest.Cluster) task.Task {
	name := string(n.Name)
	t := manifestsTask(name, func(_ context.Context, t *task.Host) (applied, error) {
		data, err := n.Manifest(t.Site.Cluster)
		return applied{name: name, namespace: kube.SystemNamespace, data: data, wait: ChartWait}, err
	})
	t.Images, t.Leaves = n.Images, networkLeaves(n, c)
	return t
}

// networkLeaves lists the remains of a network's pods on hosts. Its packet filter chains are removed with those of
// Kubernetes, and what is removed from every node is not a task's.
func networkLeaves(n network.Network, c *manifest.Cluster) task.Leaves {
	if n.Leaves.Always {
		return task.Leaves{}
	}
	var undo []func(context.Context, *task.Host) error
	for _, name := range n.Leaves.Tables {
		undo = append(undo, machine.DropTables(name))
	}
	for _, prefix := range n.Leaves.Sets {
		undo = append(undo, machine.DropSets(prefix))
	}
	if mounts := n.Leaves.Mounts; len(mounts) > 0 {
		undo = append(undo, func(ctx context.Context, t *task.Host) error { return t.Unmount(ctx, mounts...) })
	}
	if script := n.Leaves.Script; script.Text != "" {
		undo = append(undo, func(ctx context.Context, t *task.Host) error {
			return t.Run(ctx, host.Script(script.Name, script.Text)...)
		})
	}
	l := task.Leaves{Links: n.Staying(), Paths: slices.Concat(n.Leaves.Paths, n.ReplacedPlugins(c))}
	if len(undo) > 0 {
		l.Undo = machine.UndoAll(undo...)
	}
	return l
}

// networkChart is the chart of a network. Its pods need the host's network.
func networkChart(n network.Network, c *manifest.Cluster) OwnChart {
	o := OwnChart{
		component: string(n.Name), chart: n.Chart.Name, Namespace: n.Chart.Namespace, privileged: true,
		everywhere: n.Chart.Everywhere,
		values:     func(e environment) (map[string]any, error) { return n.Chart.Values(e.network()) },
		options:    n.Chart.Options, files: c.CNI.Values,
	}
	if before := n.Chart.Before; before != nil {
		o.before = func(ctx context.Context,
			t *task.Host,
		) error {
			e, err := environmentOf(t.Site)
			if err != nil {
				return err
			}
			return before(ctx, t, e.network())
		}
	}
	if after := n.Chart.After; after != nil {
		o.after = func(ctx context.Context, t *task.Host) error {
			if n.Chart.Wait == 0 {
				return after(ctx, t)
			}
			return task.Eventually(ctx, n.Chart.Wait, func(ctx context.Context) error { return after(ctx, t) })
		}
	}
	return o.withDefaults()
}

// network returns what the values of networks may depend on.
func (e environment) network() network.Site {
	nodes := func(hosts []*task.Host) []network.Node {
		var list []network.Node
		for _, t := range hosts {
			list = append(list, network.Node{Name: t.Name, IP: t.IP})
		}
		return list
	}
	return network.Site{Cluster: e.cluster, Nodes: nodes(e.nodes), ControlPlanes: nodes(e.controlPlanes)}
}

// IsOwnYAML reports whether a task of this name applies YAML of kkbundle's own, which leaves a record in the cluster.
func IsOwnYAML(name string) bool {
	return name == NodeDNS || name == RuntimeClasses ||
		slices.ContainsFunc(network.All(), func(n network.Network) bool {
			return n.Manifest != nil && string(n.Name) == name || n.Chart != nil && n.Chart.Definitions != nil &&
				n.Chart.Definitions.Component == name
		})
}
