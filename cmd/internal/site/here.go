package site

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// install without arguments uses the only bundle and the inventory in the working directory, or this host alone.
const (
	DefaultInventory = "inventory.yaml"
	bundleExtension  = ".kkb"
)

// Here is the input of install without arguments.
type Here struct {
	Bundle, Inventory string // paths
	Made              []byte // an inventory of this host alone; nil if Inventory exists
}

// FindHere finds the bundle and the inventory; inventory is "" without -i.
func FindHere(inventory string) (Here, error) {
	found, err := oneBundle(".")
	if err != nil {
		return Here{}, err
	}
	c := Here{Bundle: found, Inventory: inventory}
	if inventory != "" {
		return c, nil
	}
	c.Inventory = DefaultInventory
	if _, err := os.Lstat(DefaultInventory); err == nil || !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	c.Made, err = inventoryOfThisHost()
	return c, err
}

// oneBundle returns the only bundle of a directory, encrypted or not. Parts of a split bundle count as one.
func oneBundle(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var found []string
	for _, e := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), ".001"), bundle.EncryptedSuffix)
		if !e.IsDir() && strings.HasSuffix(name, bundleExtension) {
			found = append(found, e.Name())
		}
	}
	switch len(found) {
	case 0:
		return "", usage.Errorf("there is no bundle (*.kkb) in this directory: name one, with -i INVENTORY")
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	return "", usage.Errorf("there are %d bundles in this directory (%s): name one, with -i INVENTORY", len(found),
		plain.Line(strings.Join(found, ", ")))
}

// inventoryOfThisHost returns an inventory of this host alone, with all roles.
func inventoryOfThisHost() ([]byte, error) {
	if runtime.GOOS != "linux" {
		return nil, usage.Errorf(
			"there is no %s here, and this machine (%s) cannot be a cluster by itself: name the hosts with -i INVENTORY", DefaultInventory, runtime.GOOS)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host: %w", err)
	}
	name = strings.ToLower(name)
	address := ""
	if a := onlyAddress(); a.IsValid() {
		address = ", internalIPv4: " + a.String()
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# This host alone, as kkbundle install wrote it. More hosts can be added; docs/reference/inventory.md has every key.
apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  %[1]q: {local: true%[2]s}
groups:
  kube_control_plane: [%[1]q]
  kube_worker: [%[1]q]
  etcd: [%[1]q]
  image_registry: [%[1]q]
`, name, address)
	return b.Bytes(), nil
}

// onlyAddress returns this host's IPv4 address if it has exactly one that is global; otherwise the default route
// decides later.
func onlyAddress() netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}
	}
	var found []netip.Addr
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			found = append(found, p.Addr())
		}
	}
	if len(found) != 1 {
		return netip.Addr{}
	}
	return found[0]
}
