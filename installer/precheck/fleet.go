package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fleet holds the facts for checks that compare hosts. It is computed once: comparing each host with each other would
// take hours for 10,000 hosts.
type fleet struct {
	cluster   *manifest.Cluster // for hosts without settings of their own
	addresses []netip.Addr      // of each host, in the order of Input.Hosts
	hosts     int               // number of hosts
	byAddress owners[netip.Addr]
	byName    owners[string] // by the host's own name
	byMachine owners[string]
	byProduct owners[string]
	byMAC     owners[string]
	named     map[string]netip.Addr // addresses by the inventory's names
	clock     time.Duration         // median of the clocks' advance over this machine's
	mtu       int                   // the most common MTU of the nodes' interfaces
	members   map[manifest.Role][]string
	begun     bool              // a host is already a node, or a member of etcd
	links     map[string][]Link // by source host
}

// owners maps a value to its hosts.
type owners[K comparable] map[K][]string

func (o owners[K]) add(key K, host string) { o[key] = append(o[key], host) }

// besides names the key's hosts other than one host, "" if there are none.
func (o owners[K]) besides(host string, key K) string {
	var names []string
	all := o[key]
	for _, name := range all {
		if name != host {
			names = append(names, name)
		}
		if len(names) == shown {
			break
		}
	}
	text := strings.Join(names, ", ")
	if more := len(all) - 1 - len(names); more > 0 && len(names) > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func newFleet(in *Input, c *manifest.Cluster) *fleet {
	f := &fleet{
		cluster: c, hosts: len(in.Hosts), byAddress: owners[netip.Addr]{}, byName: owners[string]{},
		byMachine: owners[string]{}, byProduct: owners[string]{}, byMAC: owners[string]{},
		named: map[string]netip.Addr{}, members: map[manifest.Role][]string{}, links: map[string][]Link{},
	}
	for _, h := range in.all() {
		for _, role := range h.Roles {
			f.members[role] = append(f.members[role], h.Name)
		}
	}
	mtus := map[int]int{}
	offsets := []time.Duration{0} // this machine, whose clock applies to new certificates
	for _, h := range in.Hosts {
		address := AddressFor(c, h.Host, h.Facts)
		f.addresses = append(f.addresses, address)
		f.named[h.Name] = address
		if address.IsValid() {
			f.byAddress.add(address, h.Name)
		}
		if h.Facts == nil {
			continue
		}
		f.identify(h)
		f.begun = f.begun || slices.ContainsFunc(h.Facts.Path(MarkerDir).Entries,
			func(name string) bool { return name == "member" || name == "etcd-member" })
		if i, _, ok := interfaceOf(h.Facts, address); ok && i.Kind != node.LoopbackKind && h.Is(manifest.RoleCluster) {
			mtus[i.MTU]++
		}
		if low, high, known := h.offset(); known {
			offsets = append(offsets, low+(high-low)/2)
		}
	}
	f.clock = medianOffset(offsets)
	for mtu, n := range mtus {
		if n > mtus[f.mtu] || n == mtus[f.mtu] && mtu < f.mtu {
			f.mtu = mtu
		}
	}
	for _, l := range in.Links {
		f.links[l.From] = append(f.links[l.From], l)
	}
	return f
}

// all returns the cluster's hosts, including those outside of this run's selection, or skipped by it.
func (in *Input) all() []manifest.Host {
	if in.Inventory != nil {
		return in.Inventory.Hosts()
	}
	var list []manifest.Host
	for _, h := range in.Hosts {
		list = append(list, h.Host)
	}
	return list
}

// identify records the values that should be unique to a host.
func (f *fleet) identify(h Host) {
	if h.Facts.Hostname != "" {
		f.byName.add(strings.ToLower(h.Facts.Hostname), h.Name)
	}
	if h.Facts.MachineID != "" {
		f.byMachine.add(h.Facts.MachineID, h.Name)
	}
	if h.Facts.ProductUUID != "" {
		f.byProduct.add(strings.ToLower(h.Facts.ProductUUID), h.Name)
	}
	for _, mac := range macs(h) {
		f.byMAC.add(mac, h.Name)
	}
}

// medianOffset returns the median. Of two values in the middle it returns the one nearer to this machine's clock:
// with a single host, that host cannot outvote this machine.
func medianOffset(offsets []time.Duration) time.Duration {
	slices.Sort(offsets)
	low, high := offsets[(len(offsets)-1)/2], offsets[len(offsets)/2]
	if high.Abs() < low.Abs() {
		return high
	}
	return low
}

// offset returns the bounds of the host clock's advance over this machine's: the facts were read at some moment between
// request and answer.
func (h Host) offset() (low, high time.Duration, known bool) {
	if h.Facts == nil || h.Facts.Clock == 0 || h.Sent.IsZero() || h.Received.IsZero() {
		return 0, 0, false
	}
	clock := time.Unix(0, h.Facts.Clock)
	return clock.Sub(h.Received.Round(0)), clock.Sub(h.Sent.Round(0)), true
}

// macs returns the addresses of the interfaces with a default route or with the host's own address. Without such
// interfaces it returns those of every card with an address. Bridges and tunnels are excluded, since they may be equal
// on different hosts.
func macs(h Host) []string {
	own, _, _ := interfaceOf(h.Facts, Address(h.Host, h.Facts))
	var list []string
	for _, i := range h.Facts.Interfaces {
		routed := slices.ContainsFunc(h.Facts.Routes, func(r node.DefaultRoute) bool { return r.Interface == i.Name })
		if own.Name == "" && len(h.Facts.Routes) == 0 {
			routed = len(i.Addresses) > 0 && i.Kind == ""
		}
		if i.MAC != "" && (routed || i.Name == own.Name) && !slices.Contains(list, i.MAC) {
			list = append(list, i.MAC)
		}
	}
	return list
}

// hasNoMAC reports whether a host's address is on an interface of a kind without MAC addresses, such as a tunnel.
func hasNoMAC(h Host) bool {
	i, _, ok := interfaceOf(h.Facts, Address(h.Host, h.Facts))
	return ok && i.MAC == "" && i.Kind != node.LoopbackKind
}

// Address returns the host's address in the cluster: the inventory's, or else the IPv4 address of the interface with
// the default route. It is invalid if there is neither.
func Address(h manifest.Host, f *node.Facts) netip.Addr {
	if h.InternalIPv4.IsValid() || f == nil {
		return h.InternalIPv4
	}
	for _, route := range f.Routes {
		for _, i := range f.Interfaces {
			if i.Name != route.Interface || !route.Gateway.Is4() {
				continue
			}
			for _, p := range i.Addresses {
				if p.Addr().Is4() {
					return p.Addr()
				}
			}
		}
	}
	return netip.Addr{}
}

// AddressFor is Address, or Address6 for a cluster without IPv4.
func AddressFor(c *manifest.Cluster, h manifest.Host, f *node.Facts) netip.Addr {
	if hasFamily(c, is4) || !hasFamily(c, is6) {
		return Address(h, f)
	}
	return Address6(h, f)
}

// Address6 returns the host's IPv6 address in the cluster: the inventory's, or else the only one of the host's own
// interfaces except link-local ones. It is invalid if there is none, or if there are several.
func Address6(h manifest.Host, f *node.Facts) netip.Addr {
	if h.InternalIPv6.IsValid() || f == nil {
		return h.InternalIPv6
	}
	var found []netip.Addr
	for _, i := range f.Interfaces {
		own := i.Kind == "" || i.Kind == "bond" || i.Kind == "vlan" || i.Kind == "team"
		// A veth is a host's own only if the host is a container; pods' ends have link-local addresses.
		for _, p := range i.Addresses {
			if a := p.Addr(); (own || i.Kind == "veth") && a.Is6() && !a.IsLinkLocalUnicast() && !a.IsLoopback() {
				found = append(found, a)
			}
		}
	}
	if len(found) != 1 {
		return netip.Addr{}
	}
	return found[0]
}

// interfaceOf returns the interface with an address, and the address's network.
func interfaceOf(f *node.Facts, address netip.Addr) (node.Interface, netip.Prefix, bool) {
	for _, i := range f.Interfaces {
		for _, p := range i.Addresses {
			if p.Addr() == address {
				return i, p.Masked(), true
			}
		}
	}
	return node.Interface{}, netip.Prefix{}, false
}

// shown is the number of list entries to show.
const shown = 3

// some shows the first of a list.
func some(names []string) string { return plain.Few(names, shown) }
