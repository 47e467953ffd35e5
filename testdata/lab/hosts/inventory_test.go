package hosts

import (
	"os"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// TestInventory holds that kkbundle understands the inventory.
func TestInventory(t *testing.T) {
	t.Parallel()
	l := &Lab{State: t.TempDir(), Hosts: []Host{
		{Number: 1, Name: "host1", Address: "10.250.0.11"},
		{Number: 2, Name: "host2", Address: "10.250.0.12"},
		{Number: 3, Name: "host3", Address: "10.250.0.13"},
	}}
	if err := l.WriteInventory(l.InventoryFile(), l.oneControlPlane()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(l.InventoryFile())
	if err != nil {
		t.Fatal(err)
	}
	inv, err := manifest.ParseInventory("inventory.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Groups.ControlPlane) != 1 || len(inv.Groups.Worker) != 2 || len(inv.HostSpecs) != 3 ||
		inv.HostSpecs[0].SSH.User != "root" {
		t.Errorf("got %+v", inv)
	}
}
