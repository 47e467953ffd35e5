package addon

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestNewNetwork: a network that the table has is installed, whatever its name is.
func TestNewNetwork(t *testing.T) {
	t.Parallel()
	known := append(network.All(), network.Network{
		Name: "weave", Images: []string{"weave-kube"}, Namespaces: []string{"weave-pods"},
		Programs: []network.Program{{Component: "weavectl", Path: "/usr/local/bin/weavectl"}},
		Chart: &network.Chart{
			Name: "weave-net", Namespace: "weave", Everywhere: true, Options: map[string]any{"scope": true},
			Values: func(s network.Site) (map[string]any, error) { return map[string]any{"peers": len(s.Nodes)}, nil },
		},
		Interfaces: []network.Interface{{Name: "weave", Traits: network.Stays}},
		Leaves:     network.Leaves{Paths: []string{"/var/lib/weave"}, Tables: []string{"weave"}},
	})
	c := &manifest.Cluster{CNI: manifest.CNI{Type: "weave", Values: []string{"own.yaml"}}}
	tasks := networkTasks(known, c)
	if len(tasks) != 1 {
		t.Fatalf("tasks: %v", tasks)
	}
	got := tasks[0]
	want := []manifest.Need{
		{Kind: manifest.ItemFile, Name: "weavectl"},
		{Kind: manifest.ItemImage, Name: "weave-kube"},
		{Kind: manifest.ItemChart, Name: "weave"},
	}
	needs := got.Needs()
	for _, n := range want {
		if !slices.Contains(needs, n) {
			t.Errorf("it does not need %v: %v", n, needs)
		}
	}
	if got.Name != "weave" || len(needs) != len(want) || got.Leaves.Undo == nil {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([][]string{got.Leaves.Links, got.Leaves.Paths},
		[][]string{{"weave"}, {"/var/lib/weave"}}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(ownNamespaces(known, c), []string{"kube-system", "weave", "weave-pods"}); diff != "" {
		t.Errorf("namespaces (-got +want):\n%s", diff)
	}
	own := ownCharts(known, c)["weave"]
	uses, err := own.Uses(c)
	first := manifest.ChartUse{
		Chart: "weave-net", Release: "weave", Namespace: "weave",
		Set: map[string]any{"peers": 0}, Values: []string{"own.yaml"},
	}
	second := first
	second.Set = map[string]any{"peers": 0, "scope": true}
	if diff := cmp.Diff(uses, []manifest.ChartUse{first, second}); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
	if values, err := own.values(environment{cluster: c, nodes: hostsAt("10.0.0.3", "10.0.0.4")}); err != nil ||
		values["peers"] != 2 {
		t.Errorf("values with hosts: %v, %v", values, err)
	}
}

// TestNewAdding: a network that adds to another comes after it, as YAML.
func TestNewAdding(t *testing.T) {
	t.Parallel()
	known := append(network.All(), network.Network{
		Name: "second", Adds: true, Images: []string{"second"},
		Manifest: func(*manifest.Cluster) ([]byte, error) { return nil, nil },
	})
	var names []string
	for _, one := range networkTasks(known, &manifest.Cluster{CNI: manifest.CNI{Type: "second", With: "flannel"}}) {
		names = append(names, one.Name)
	}
	if got := strings.Join(names, " "); got != "flannel second" {
		t.Errorf("tasks: %s", got)
	}
}

// TestNetworkHooks: what a network wants before and after its chart gets the nodes, and kubectl.
func TestNetworkHooks(t *testing.T) {
	t.Parallel()
	var said []string
	n := network.Network{Name: "weave", Chart: &network.Chart{
		Before: func(_ context.Context, _ network.Kubectl, s network.Site) error {
			for _, n := range s.ControlPlanes {
				said = append(said, n.Name)
			}
			return nil
		},
		After: func(context.Context, network.Kubectl) error { said = append(said, "after"); return nil },
	}}
	o := networkChart(n, &manifest.Cluster{})
	site := &task.Site{Cluster: &manifest.Cluster{}}
	on := &task.Host{Host: manifest.Host{Name: "cp1", Roles: []manifest.Role{manifest.RoleControlPlane}}, Site: site}
	site.Hosts = []*task.Host{on}
	for _, hook := range []func(context.Context, *task.Host) error{o.before, o.after} {
		if err := hook(t.Context(), on); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(said, " "); got != "cp1 after" {
		t.Errorf("said %s", got)
	}
}
