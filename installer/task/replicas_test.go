package task

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// Nodes begin with different hosts of the registry, about as many with each, and keep their first one when another
// host comes or goes.
func TestReplicas(t *testing.T) {
	t.Parallel()
	var hosts []*Host
	for _, address := range []string{"10.0.0.1", "fd00::2", "10.0.0.3"} {
		hosts = append(hosts, &Host{Host: manifest.Host{Name: "reg" + address}, IP: netip.MustParseAddr(address)})
	}
	r := RegistryAccess{Address: "10.0.0.9:5000"}
	begin := map[string]int{}
	const nodes = 300
	for n := range nodes {
		name := fmt.Sprint("node", n)
		list := r.Replicas(name, hosts)
		begin[list[0]]++
		sorted := slices.Sorted(slices.Values(list))
		if want := []string{"10.0.0.1:5000", "10.0.0.3:5000", "[fd00::2]:5000"}; !slices.Equal(sorted, want) {
			t.Fatalf("%s asks %v", name, list)
		}
		fewer := r.Replicas(name, hosts[:2])
		if want := slices.DeleteFunc(list, func(a string) bool { return a == "10.0.0.3:5000" }); !slices.Equal(fewer, want) {
			t.Errorf("%s asks %v, with a host less %v", name, list, fewer)
		}
	}
	for address, n := range begin {
		if n < nodes/4 || n > nodes/2 {
			t.Errorf("%d of %d nodes begin with %s", n, nodes, address)
		}
	}
	if got := (RegistryAccess{Address: "10.0.0.9"}).Replicas("a", hosts[1:2]); got[0] != "[fd00::2]" {
		t.Errorf("without a port: %v", got)
	}
}
