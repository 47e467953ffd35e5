//go:build linux

package reset

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// Reset takes the address and its unit away on registry hosts, and leaves what others have announced elsewhere.
func TestRegistryAddressReset(t *testing.T) {
	t.Parallel()
	p := sitetest.NewPairSite(t)
	for _, name := range []string{"cp1", "reg1"} {
		h := p.Hosts[name]
		h.Put(t, "/etc/systemd/system/"+siteregistry.AddressUnit, siteregistry.AddressUnitText)
		t0 := p.R.Hosts[slices.IndexFunc(p.R.Hosts, func(t *task.Host) bool { return t.Name == name })]
		h.Said("")
		if err := removeLeaves(t.Context(), t0, siteregistry.AddressTask().Leaves); err != nil {
			t.Fatal(err)
		}
		if h.Content("/etc/systemd/system/"+siteregistry.AddressUnit) != "" {
			t.Errorf("%s keeps the unit", name)
		}
		deletes := slices.Contains(h.Said("ip"), "ip address delete 127.0.0.4/32 dev eth0")
		if deletes != (name == "reg1") {
			t.Errorf("%s: the address is deleted: %t", name, deletes)
		}
	}
}
