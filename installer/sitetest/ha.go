//go:build linux

package sitetest

import (
	"fmt"
	"testing"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// NewHA is a site with control planes cp1 to cp3, workers node1 and node2, and the registry on node1.
func NewHA(t *testing.T, endpoint string) (*Site, *fakeCluster) {
	t.Helper()
	s := NewSite(t, "cp1", "cp2", "cp3", "node1", "node2")
	s.Options.Inventory = HaInventory(t, "cp1, cp2, cp3")
	s.Options.Cluster = tasktest.Cluster(t, endpoint)
	return s, NewFakeCluster(t, s)
}

// HaInventory returns an inventory with control planes and workers.
func HaInventory(t *testing.T, controlPlanes string) *manifest.Inventory {
	t.Helper()
	text := "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"
	for i, name := range []string{"cp1", "cp2", "cp3", "node1", "node2"} {
		text += fmt.Sprintf("  %s: {address: 10.0.0.%d}\n", name, 3+i)
	}
	inv, err := manifest.ParseInventory("i", []byte(text+"groups: {kube_control_plane: ["+controlPlanes+
		"], kube_worker: [node1, node2], image_registry: [node1]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// Join makes hosts members of the cluster as it is.
func (s *Site) Join(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.Hosts[name].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
	}
}
