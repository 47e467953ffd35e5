package node

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/network"
)

// TestModulesOfNetworks: each module of a pod network has an option. A kernel without a list of its modules tells by
// its options which modules are built in, and a module without one would count as missing.
func TestModulesOfNetworks(t *testing.T) {
	t.Parallel()
	for _, n := range network.All() {
		for _, module := range n.Modules {
			if moduleOption(module) == "" {
				t.Errorf("%s needs %s, whose option is not known", n.Name, module)
			}
		}
	}
}
