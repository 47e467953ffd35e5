package node

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/network"
)

// TestModulesOfNetworks: a kernel without a list of its modules says by its configuration what is built in. A module
// without an option would be missing there.
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
