package hosts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// InventoryFile is the lab's inventory for kkbundle: the first host is control plane and registry and is reached as root, the
// others are workers and are reached as a user who has to give sudo a password.
func (l *Lab) InventoryFile() string { return filepath.Join(l.State, "inventory.yaml") }

func (l *Lab) inventory() error {
	password := filepath.Join(l.State, "sudo-password")
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: kkbundle.io/v1
kind: Inventory
vars:
  ssh: {user: %s, key: %s}
  sudo: {passwordFile: %s}
hosts:
`, software.SudoUser, l.KeyFile(), password)
	workers := []string{}
	for i, h := range l.Hosts {
		if i == 0 {
			fmt.Fprintf(&b, "  %s: {address: %s, ssh: {user: root}}\n", h.Name, h.Address)
			continue
		}
		fmt.Fprintf(&b, "  %s: {address: %s}\n", h.Name, h.Address)
		workers = append(workers, h.Name)
	}
	first := l.Hosts[0].Name
	fmt.Fprintf(&b, "groups:\n  kube_control_plane: [%s]\n  etcd: [%s]\n  image_registry: [%s]\n  kube_worker: [%s]\n", first, first, first, strings.Join(workers, ", "))
	if err := errors.Join(
		os.WriteFile(password, []byte(software.SudoPassword+"\n"), 0o600),
		os.WriteFile(l.InventoryFile(), []byte(b.String()), 0o644),
	); err != nil {
		return fmt.Errorf("inventory of the lab: %w", err)
	}
	return nil
}
