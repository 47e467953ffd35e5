package plan

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestReplacedPlugins: the plugins that Calico replaces are not put on nodes, and the list from which a task made its steps
// stays whole.
func TestReplacedPlugins(t *testing.T) {
	t.Parallel()
	c := (&manifest.Cluster{
		Kubernetes: manifest.Kubernetes{Version: "v1.36.3"}, CNI: manifest.CNI{Type: manifest.NetworkCalico},
	}).WithDefaults()
	own := cri.PluginFiles()
	tasks := withoutReplaced(c, []task.Task{{Name: "containerd", Files: own}})
	has := func(list []task.Place, name string) bool {
		return slices.ContainsFunc(list, func(p task.Place) bool { return p.Component == "cni-plugins" && p.Member == name })
	}
	for name, kept := range map[string]bool{"loopback": false, "portmap": false, "macvlan": true, "vrf": true} {
		if has(tasks[0].Files, name) != kept {
			t.Errorf("%s is put on nodes: %t", name, !kept)
		}
		if !has(own, name) {
			t.Errorf("the task's own list lacks %s", name)
		}
	}
}
