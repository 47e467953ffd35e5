package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/plain"
)

// install without arguments uses the only bundle and the inventory in the working directory, or this host alone.
const (
	defaultInventory = "inventory.yaml"
	bundleExtension  = ".kkb"
)

// chosen is the input of install without arguments.
type chosen struct {
	bundle, inventory string
	// made is an inventory of this host alone; nil if inventory exists.
	made []byte
}

// chooseHere finds the bundle and the inventory.
func chooseHere(inventory string) (chosen, error) {
	bundle, err := oneBundle(".")
	if err != nil {
		return chosen{}, err
	}
	c := chosen{bundle: bundle, inventory: inventory}
	if inventory != "" {
		return c, nil
	}
	c.inventory = defaultInventory
	if _, err := os.Lstat(defaultInventory); err == nil || !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	c.made, err = inventoryOfThisHost()
	return c, err
}

// oneBundle returns the only bundle of a directory. Parts of a split bundle count as one.
func oneBundle(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var found []string
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".001")
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
	return "", usage.Errorf("there are %d bundles in this directory (%s): name one, with -i INVENTORY", len(found), plain.Line(strings.Join(found, ", ")))
}

// inventoryOfThisHost returns an inventory of this host alone, with all roles.
func inventoryOfThisHost() ([]byte, error) {
	if runtime.GOOS != "linux" {
		return nil, usage.Errorf("there is no %s here, and this machine (%s) cannot be a cluster by itself: name the hosts with -i INVENTORY", defaultInventory, runtime.GOOS)
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

// onlyAddress returns this host's IPv4 address if it has exactly one that is global; otherwise the default route decides later.
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

// agreeHere prints bundle and hosts, and asks for confirmation without --yes. It writes the inventory of this host for later
// commands, or to a temporary directory for a dry run, which asks nothing. Call done at the end.
func (g *globals) agreeHere(c *chosen, o installOptions) (done func() error, err error) {
	done = func() error { return nil }
	g.Note("bundle: %s", plain.Line(c.bundle))
	if c.made == nil {
		g.Note("hosts:  those of %s", plain.Line(c.inventory))
	} else {
		g.Note("hosts:  this one alone, as control plane, worker, etcd and image registry; there is no %s here", defaultInventory)
		g.Note("        It takes containerd, the kubelet, a Kubernetes control plane and a registry with the bundle's images as services of this\n" +
			"        machine, turns swap off, and sets kernel parameters. kkbundle reset takes all of it away again.")
	}
	if !o.yes && !o.dryRun && !o.list {
		if err := g.Confirm("Install?"); err != nil {
			return done, err
		}
	}
	if c.made == nil {
		return done, nil
	}
	if !o.dryRun && !o.list {
		f, err := os.OpenFile(c.inventory, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return done, err
		}
		_, err = f.Write(c.made)
		return done, errors.Join(err, f.Close())
	}
	dir, err := os.MkdirTemp("", "kkbundle-")
	if err != nil {
		return done, err
	}
	c.inventory = filepath.Join(dir, defaultInventory)
	return func() error { return os.RemoveAll(dir) }, os.WriteFile(c.inventory, c.made, 0o600)
}

// chooseInstall returns the bundle for install without arguments, and sets the inventory in o. Call done at the end.
func (g *globals) chooseInstall(o *installOptions) (bundle string, done func() error, err error) {
	c, err := chooseHere(o.InventoryFile)
	if err != nil {
		return "", nil, err
	}
	if done, err = g.agreeHere(&c, *o); err != nil {
		return "", nil, errors.Join(err, done())
	}
	o.InventoryFile = c.inventory
	return c.bundle, done, nil
}
