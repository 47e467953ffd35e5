package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// networkChecks check a host's own network settings.
func networkChecks() []Check {
	return []Check{
		{
			ID: "address", Groups: []string{GroupNetwork, GroupKubernetes}, Level: Block,
			Title: "the host has the address that the inventory gives", Rule: hasAddress,
			Why:    "other hosts would look for this one in vain",
			Fix:    "correct internalIPv4 (or address) in the inventory, or configure the address on the host",
			Source: "KubeKey v4 network_precheck; Kubespray (ip is one of the host's addresses)",
		},
		{
			ID: "address-ipv6", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the host has an IPv6 address where the cluster uses IPv6", Rule: hasAddress6, Roles: cluster(),
			Why:    "a node without one cannot be part of a dual-stack cluster",
			Fix:    "configure an address other than a link-local one on the host, correct internalIPv6 in the inventory, or take the IPv6 network out of kubernetes.podCIDR and serviceCIDR",
			Source: "KubeKey v4 kubernetes_precheck; Kubernetes: dual-stack prerequisites",
		},
		{
			ID: "address-unique", Groups: []string{GroupNetwork}, Level: Block, Title: "no other host has its address",
			Rule:   hasUniqueAddress,
			Why:    "two hosts with one address cannot be told apart",
			Fix:    "correct internalIPv4 (or address) in the inventory",
			Source: "kkbundle",
		},
		{
			ID: "networks", Groups: []string{GroupNetwork}, Level: Block,
			Title: "its networks do not overlap those of pods and services", Rule: hasNoOverlap, Roles: cluster(),
			Why:    "traffic to other hosts would end in the pod network",
			Fix:    "choose another kubernetes.podCIDR or serviceCIDR in the cluster file",
			Source: "kkbundle",
		},
		{
			ID: "routes", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "no route leads into the networks of pods and services", Rule: hasNoForeignRoute, Roles: cluster(),
			Why:    "the host's packets for the other network go to the pods, or those for the pods go elsewhere",
			Fix:    "choose another kubernetes.podCIDR or serviceCIDR in the cluster file, or remove the route",
			Source: "kkbundle",
		},
		{
			ID: "default-route", Groups: []string{GroupNetwork}, Level: Block, Title: "there is a default route",
			Rule: hasDefaultRoute, Roles: cluster(),
			LevelOf: routeLevel, Varies: "warns unless the pod network's pods end without one, as Hybridnet's do",
			Why:    "some programs choose a host's address by it, and services in the cluster may be unreachable from the host without one",
			Fix:    "set one, also where it leads nowhere",
			Source: "k3s #1144, rke2 #1242: choice of the address; Hybridnet v0.8.8: both ipv4 and ipv6 default gateway not found",
		},
		{
			ID: "mtu", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "its packets may be as large as the other hosts'", Rule: hasCommonMTU, Roles: cluster(),
			Why:    "pods take the size of their host's packets: larger ones are lost on the way to a host that takes smaller ones only",
			Fix:    "give the interfaces of all hosts the same MTU",
			Source: "kkbundle",
		},
		{
			ID: "internet", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the host does not reach the internet where that is forbidden", Rule: isOffline,
			Why:    "the site's rules say so (precheck.internet: forbidden)",
			Fix:    "close the way to the internet, or take precheck.internet out of the cluster file",
			Source: "kkbundle",
		},
	}
}

func is4(p netip.Prefix) bool { return p.Addr().Is4() }
func is6(p netip.Prefix) bool { return p.Addr().Is6() }

// hasFamily reports whether pods or services have addresses of a family.
func hasFamily(c *manifest.Cluster, is func(netip.Prefix) bool) bool {
	return slices.ContainsFunc(c.Kubernetes.PodCIDR, is) || slices.ContainsFunc(c.Kubernetes.ServiceCIDR, is)
}

func hasAddress(s *Subject) Finding {
	want := s.address
	if !want.IsValid() && !hasFamily(s.Cluster, is4) {
		return fail("the inventory gives no IPv6 address, and the host has none or several")
	}
	if !want.IsValid() {
		return fail("the inventory gives no IPv4 address and the host has no default route to tell one by")
	}
	if i, _, ok := interfaceOf(s.Facts, want); ok {
		return pass(fmt.Sprintf("%s on %s", want, i.Name))
	}
	all := s.addresses(func(a netip.Addr) bool { return a.Is4() == want.Is4() && !a.IsLinkLocalUnicast() })
	if len(all) == 0 {
		return failf("%s is on no interface; the host has no address of this family", want)
	}
	return failf("%s is on no interface; the host has %s", want, some(all))
}

// addresses lists the host's addresses that satisfy f.
func (s *Subject) addresses(f func(netip.Addr) bool) []string {
	var list []string
	for _, i := range s.Facts.Interfaces {
		for _, p := range i.Addresses {
			if f(p.Addr()) {
				list = append(list, p.Addr().String())
			}
		}
	}
	return list
}

func hasAddress6(s *Subject) Finding {
	if !hasFamily(s.Cluster, is6) {
		return skip()
	}
	if want := s.Host.InternalIPv6; want.IsValid() {
		if i, _, ok := interfaceOf(s.Facts, want); ok {
			return pass(fmt.Sprintf("%s on %s", want, i.Name))
		}
		return failf("%s of the inventory is on no interface", want)
	}
	list := s.addresses(func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() && !a.IsLoopback() })
	if len(list) == 0 {
		return fail("it has none")
	}
	return pass(some(list))
}

func hasUniqueAddress(s *Subject) Finding {
	if !s.address.IsValid() {
		return skip() // reported by address
	}
	if also := s.fleet.byAddress.besides(s.Host.Name, s.address); also != "" {
		return failf("%s, as %s", s.address, also)
	}
	return pass(s.address.String())
}

// A named network is one of the cluster's.
type namedNetwork struct {
	name string
	netip.Prefix
}

func clusterNetworks(c *manifest.Cluster) []namedNetwork {
	var list []namedNetwork
	for _, p := range c.Kubernetes.PodCIDR {
		list = append(list, namedNetwork{"pods", p})
	}
	for _, p := range c.Kubernetes.ServiceCIDR {
		list = append(list, namedNetwork{"services", p})
	}
	return list
}

// hasNoOverlap checks the network of the host's address; networks of interfaces created by a cluster are its own.
func hasNoOverlap(s *Subject) Finding {
	if !s.address.IsValid() {
		return skip() // reported by address
	}
	_, network, ok := interfaceOf(s.Facts, s.address)
	if !ok {
		network = netip.PrefixFrom(s.address, s.address.BitLen())
	}
	var found []string
	for _, of := range clusterNetworks(s.Cluster) {
		if of.Overlaps(network) {
			found = append(found, fmt.Sprintf("%s overlaps %s of the %s", network, of.Prefix, of.name))
		}
	}
	return none(found, network.String())
}

// hasNoForeignRoute checks all routes except the one checked by networks. The routes of a present or former cluster are
// its own, or leftovers.
func hasNoForeignRoute(s *Subject) Finding {
	if s.Ours() || len(s.Facts.AllRoutes) == 0 {
		return skip()
	}
	_, own, _ := interfaceOf(s.Facts, s.address)
	var found []string
	for _, r := range s.Facts.AllRoutes {
		if isDefault(r.To) || r.To == own || s.isPodInterface(r.Interface) {
			continue
		}
		for _, of := range clusterNetworks(s.Cluster) {
			if of.Overlaps(r.To) {
				way := "through " + r.Interface
				if r.Interface == "" {
					way = "to nowhere"
				}
				found = append(found, fmt.Sprintf("%s %s is in %s of the %s", r.To, way, of.Prefix, of.name))
			}
		}
	}
	if len(found) > 0 {
		return fail(some(found))
	}
	return pass("none does")
}

// isDefault reports whether a route is for everything, or one of two halves of it, as VPNs set them.
func isDefault(to netip.Prefix) bool { return to.Bits() <= 1 }

func routeLevel(s *Subject) Level {
	if slices.ContainsFunc(s.networks(), func(n network.Network) bool { return n.DefaultRoute }) {
		return Block
	}
	return Warn
}

func hasDefaultRoute(s *Subject) Finding {
	if len(s.Facts.Routes) == 0 {
		return fail("none")
	}
	r := s.Facts.Routes[0]
	if !r.Gateway.IsValid() { // of a tunnel, or of a modem
		return pass("on " + r.Interface)
	}
	return pass(fmt.Sprintf("%s on %s", r.Gateway, r.Interface))
}

func hasCommonMTU(s *Subject) Finding {
	i, _, ok := interfaceOf(s.Facts, s.address)
	switch {
	case !ok || i.MTU == 0 || i.Kind == node.LoopbackKind:
		return skip() // reported by address
	case i.MTU != s.fleet.mtu:
		return failf("%d bytes on %s, most hosts have %d", i.MTU, i.Name, s.fleet.mtu)
	default:
		return pass(fmt.Sprintf("%d bytes on %s", i.MTU, i.Name))
	}
}

// internetAddresses are dialled if the internet is forbidden. They are addresses of public resolvers, so that no name
// server is needed.
func internetAddresses() []string { return []string{"1.1.1.1:443", "8.8.8.8:53", "223.5.5.5:53"} }

func isOffline(s *Subject) Finding {
	if s.Cluster.Precheck.Internet != manifest.InternetForbidden {
		return skip()
	}
	var open []string
	tried := 0
	for _, address := range internetAddresses() {
		d, asked := s.dialled(address)
		if asked {
			tried++
		}
		if d.OK {
			open = append(open, address)
		}
	}
	switch {
	case tried == 0:
		return unknown("nobody has tried")
	case len(open) > 0:
		return fail("it reaches " + strings.Join(open, ", "))
	default:
		return pass("it does not")
	}
}
