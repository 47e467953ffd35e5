package cri

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
)

// Secondary networks of pods are made of plugins that no pod network brings: every node has those of the bundle's
// archive.
func TestNodesHavePluginsOfFurtherNetworks(t *testing.T) {
	t.Parallel()
	files := PluginFiles()
	for _, name := range []string{
		"bridge", "dhcp", "host-device", "ipvlan", "macvlan", "sbr", "tuning", "vlan",
		"vrf",
	} {
		i := slices.IndexFunc(files, func(p task.Place) bool { return p.Member == name })
		if i < 0 || files[i].Path != "/opt/cni/bin/"+name || files[i].Mode != task.Executable {
			t.Errorf("no node gets the plugin %s", name)
		}
	}
}
