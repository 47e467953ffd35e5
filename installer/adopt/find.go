package adopt

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Start returns an inventory of one control plane, given as [user@]host[:port].
func Start(target string) (*manifest.Inventory, error) {
	inv := &manifest.Inventory{APIVersion: manifest.APIVersion, Kind: manifest.KindInventory}
	address := target
	if i := strings.LastIndexByte(target, '@'); i >= 0 {
		inv.Vars.SSH.User, address = target[:i], target[i+1:]
	}
	if host, port, err := net.SplitHostPort(address); err == nil {
		address = host
		if inv.Vars.SSH.Port, err = strconv.Atoi(port); err != nil {
			return nil, errors.New("want [user@]host[:port]")
		}
	}
	address = strings.Trim(address, "[]")
	host := manifest.HostSpec{Name: startName, Address: address}
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is4() && ip.IsGlobalUnicast() {
		host.InternalIPv4 = address
	}
	inv.HostSpecs = manifest.HostSpecs{host}
	inv.Groups.ControlPlane = []string{startName}
	read, err := reread(inv)
	if err != nil {
		// The place, hosts[control-plane].FIELD, is one of a file that nobody wrote.
		place, message, found := strings.Cut(firstLine(err), ": ")
		if !found || !strings.HasPrefix(place, "hosts[") {
			message = firstLine(err)
		}
		return nil, errors.New(message)
	}
	return read, nil
}

// startName is the name of the control plane until its node's name is known.
const startName = "control-plane"

// Extend returns the inventory of all nodes of the cluster that was read through the inventory of Start. Nodes are
// dialled at their internal addresses, with the same login.
func Extend(start *manifest.Inventory, e *Evidence) (*manifest.Inventory, error) {
	inv := &manifest.Inventory{APIVersion: manifest.APIVersion, Kind: manifest.KindInventory, Vars: start.Vars}
	for i := range e.Cluster.Nodes {
		n := &e.Cluster.Nodes[i]
		h := manifest.HostSpec{Name: n.Name}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && h.Address == "" {
				h.Address = a.Address
			}
		}
		if len(e.Hosts) > 0 && e.Hosts[0].isNode(n) {
			h.Address = start.HostSpecs[0].Address
		}
		if ip := internalIPv4(n); ip.IsValid() {
			h.InternalIPv4 = ip.String()
		}
		inv.HostSpecs = append(inv.HostSpecs, h)
		if isControlPlane(n) {
			inv.Groups.ControlPlane = append(inv.Groups.ControlPlane, n.Name)
		} else {
			inv.Groups.Worker = append(inv.Groups.Worker, n.Name)
		}
	}
	return reread(inv)
}

func internalIPv4(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() {
			return ip
		}
	}
	return netip.Addr{}
}

// isNode reports whether a host is a node of the cluster: by one of its addresses, else by its name.
func (h *Host) isNode(n *corev1.Node) bool {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && slices.ContainsFunc(h.Facts.Interfaces,
			func(i node.Interface) bool {
				return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == ip })
			}) {
			return true
		}
	}
	return h.Facts.Hostname == n.Name
}

// reread reads an inventory as its file will be read, so that names from the cluster are checked.
func reread(inv *manifest.Inventory) (*manifest.Inventory, error) {
	data, err := yaml.Marshal(inv)
	if err != nil {
		return nil, err
	}
	return manifest.ParseInventory(InventoryFile, data)
}
