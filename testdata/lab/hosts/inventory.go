package hosts

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// Groups are an inventory's groups, each with the numbers of its hosts.
type Groups map[string][]int

// oneControlPlane are the groups of the lab's own inventory: the first host is everything but a worker.
func (l *Lab) oneControlPlane() Groups {
	g := Groups{"kube_control_plane": {1}, "etcd": {1}, "image_registry": {1}, "kube_worker": nil}
	for _, h := range l.Hosts[1:] {
		g["kube_worker"] = append(g["kube_worker"], h.Number)
	}
	return g
}

// InventoryFile is the lab's inventory for kkbundle. The first host is reached as root, the others as a user who has to
// give sudo a password.
func (l *Lab) InventoryFile() string { return filepath.Join(l.State, "inventory.yaml") }

// WriteInventory writes an inventory of the groups' hosts.
func (l *Lab) WriteInventory(file string, groups Groups) error {
	password := filepath.Join(l.State, "sudo-password")
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: kkbundle.io/v1
kind: Inventory
vars:
  ssh: {user: %s, key: %s}
  sudo: {passwordFile: %s}
hosts:
`, software.SudoUser, l.KeyFile(), password)
	for i, h := range l.Hosts {
		switch {
		case !groups.have(h.Number):
		case i == 0:
			fmt.Fprintf(&b, "  %s: {address: %s, ssh: {user: root}}\n", h.Name, h.Address)
		default:
			fmt.Fprintf(&b, "  %s: {address: %s}\n", h.Name, h.Address)
		}
	}
	b.WriteString("groups:\n")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		var members []string
		for _, n := range groups[name] {
			members = append(members, l.Hosts[n-1].Name)
		}
		fmt.Fprintf(&b, "  %s: [%s]\n", name, strings.Join(members, ", "))
	}
	if err := errors.Join(
		os.WriteFile(password, []byte(software.SudoPassword+"\n"), 0o600),
		os.WriteFile(file, []byte(b.String()), 0o644),
	); err != nil {
		return fmt.Errorf("inventory of the lab: %w", err)
	}
	return nil
}

func (g Groups) have(number int) bool {
	for _, members := range g {
		if slices.Contains(members, number) {
			return true
		}
	}
	return false
}
