package precheck

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// vacantID is the check that requires address probes, which take seconds.
const vacantID = "vip-free"

// endpointChecks check addresses that move between hosts (kube-vip's, and that of two registry hosts) and addresses
// outside of the cluster.
func endpointChecks() []Check {
	return []Check{
		{
			ID: "vip-address", Groups: []string{GroupKubernetes, GroupRegistry}, Level: Block,
			Title: "a shared address is an address, and no host's own", Rule: isVirtual, OfCluster: true,
			Why:    "the host that has it would always answer, or none",
			Fix:    "write an unused address of the hosts' network into controlPlaneEndpoint.address or imageRegistry.vip",
			Source: "KubeKey v4 kubernetes_precheck",
		},
		{
			ID: "vip-network", Groups: []string{GroupKubernetes, GroupRegistry}, Level: Block,
			Title: "a shared address is in the network of its hosts", Rule: isInNetwork,
			Why:    "a host can announce only addresses of a network that it is in",
			Fix:    "choose an address of the network of these hosts, or correct controlPlaneEndpoint.interface",
			Source: "KubeKey v4, whose kube-vip role fails later",
		},
		{
			ID: vacantID, Groups: []string{GroupKubernetes, GroupRegistry}, Level: Block,
			Title: "nobody has a shared address yet", Rule: isVacant,
			Why:    "two machines with one address take each other's connections away",
			Fix:    "choose an address that nobody uses, or take it from the machine that has it",
			Source: "RFC 5227; KubeKey v4 only compares it with the inventory",
		},
		{
			ID: "endpoint-reachable", Groups: []string{GroupKubernetes, GroupNetwork}, Level: Warn,
			Title: "the load balancer answers", Rule: reachesEndpoint, Roles: cluster(),
			Why:    "nodes join through it, and the API server's clients go through it",
			Fix:    "start it, open its port, or correct controlPlaneEndpoint.address; one that refuses connections until the API server runs is fine",
			Source: "kkbundle",
		},
		{
			ID: "endpoint-survives", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "the API server's address outlives a control plane", Rule: endpointSurvives, OfCluster: true,
			Why:    "the address is one control plane's own: without that host no node reaches an API server, however many there are",
			Fix:    "choose controlPlaneEndpoint.type kube-vip, haproxy or external, or a name of yours as its address that can be made to mean another host; move a running cluster to it with kkbundle endpoint move",
			Source: "kkbundle; KubeKey v4 has local for workers in the same way",
		},
	}
}

// endpointSurvives applies to several control planes: with one, an address has nothing to survive.
func endpointSurvives(s *Subject) Finding {
	e := s.Cluster.ControlPlaneEndpoint
	n := s.members(manifest.RoleControlPlane)
	switch {
	case n < 2:
		return skip()
	case e.Type == manifest.EndpointLocal && e.Address == "":
		return failf("%s, and the address is the first one's own", plain.Count(n, "host"))
	case e.Type == manifest.EndpointHAProxy:
		return pass("every worker has a proxy of its own")
	default:
		return pass(e.Address)
	}
}

// A shared address moves between the hosts of a role.
type shared struct {
	netip.Addr
	role manifest.Role
	by   string // its purpose
}

// sharedAddresses returns those of a cluster. An unparsable one is invalid.
func sharedAddresses(c *manifest.Cluster) []shared {
	var list []shared
	if c.ControlPlaneEndpoint.Type == manifest.EndpointKubeVIP {
		list = append(list, shared{
			addressOf(c.ControlPlaneEndpoint.Address), manifest.RoleControlPlane,
			"controlPlaneEndpoint.address",
		})
	}
	if c.ImageRegistry.VIP != "" {
		list = append(list, shared{addressOf(c.ImageRegistry.VIP), manifest.RoleRegistry, "imageRegistry.vip"})
	}
	return list
}

// addressOf reads an address with or without port; one of IPv6 may be in brackets, as cluster files have it.
func addressOf(text string) netip.Addr {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr()
	}
	a, _ := netip.ParseAddr(strings.Trim(text, "[]"))
	return a
}

func isVirtual(s *Subject) Finding {
	all := sharedAddresses(s.Cluster)
	if len(all) == 0 {
		return skip()
	}
	var wrong, good []string
	for _, vip := range all {
		hosts := s.fleet.byAddress[vip.Addr]
		switch {
		case !vip.IsValid():
			wrong = append(wrong, vip.by+" is no address")
		case len(hosts) > 0:
			wrong = append(wrong, fmt.Sprintf("%s (%s) is that of %s", vip.Addr, vip.by, some(hosts)))
		default:
			good = append(good, vip.String())
		}
	}
	return none(wrong, some(good))
}

// sharedHere returns the valid shared addresses that the host may have to announce.
func (s *Subject) sharedHere() []shared {
	return slices.DeleteFunc(sharedAddresses(s.Cluster),
		func(vip shared) bool { return !vip.IsValid() || !s.Host.Is(vip.role) })
}

func isInNetwork(s *Subject) Finding {
	all := s.sharedHere()
	if len(all) == 0 {
		return skip()
	}
	var wrong, good []string
	for _, vip := range all {
		only := ""
		if vip.role == manifest.RoleControlPlane {
			only = s.Cluster.ControlPlaneEndpoint.Interface
		}
		name := networkWith(s.Facts, vip.Addr, only)
		switch {
		case name != "":
			good = append(good, fmt.Sprintf("%s on %s", vip.Addr, name))
		case only != "":
			wrong = append(wrong, fmt.Sprintf("%s has no network with %s", only, vip.Addr))
		default:
			wrong = append(wrong, fmt.Sprintf("no interface has a network with %s", vip.Addr))
		}
	}
	return none(wrong, some(good))
}

// networkWith returns the interface whose network contains an address; only limits it to one interface, if set.
func networkWith(f *node.Facts, a netip.Addr, only string) string {
	for _, i := range f.Interfaces {
		for _, p := range i.Addresses {
			if (only == "" || i.Name == only) && p.Contains(a) {
				return i.Name
			}
		}
	}
	return ""
}

// isVacant is evaluated for one host of each role, on behalf of the others; a host that announces the address does not
// count as its owner.
func isVacant(s *Subject) Finding {
	var wrong, untold, good []string
	for _, vip := range s.sharedHere() {
		i := slices.IndexFunc(s.Facts.Vacant, func(v node.Vacancy) bool { return v.Address == vip.Addr })
		switch {
		case i < 0 || s.Ours():
		case s.Facts.Vacant[i].InUse():
			wrong = append(wrong, fmt.Sprintf("%s is in use%s", vip.Addr, byWhom(s.Facts.Vacant[i])))
		case !s.Facts.Vacant[i].Asked:
			untold = append(untold, fmt.Sprintf("%s: %s", vip.Addr, s.Facts.Vacant[i].Problem))
		default:
			good = append(good, vip.String())
		}
	}
	switch {
	case len(wrong) > 0:
		return fail(some(wrong))
	case len(untold) > 0:
		return unknown(some(untold))
	case len(good) == 0:
		return skip()
	default:
		return pass(some(good))
	}
}

func byWhom(v node.Vacancy) string {
	switch {
	case len(v.MACs) > 0:
		return " by " + some(v.MACs)
	case v.APIServer:
		return ", an API server answers there"
	default:
		return ", it answers ping"
	}
}

// endpointAddresses returns the addresses of the user's own load balancer.
func endpointAddresses(c *manifest.Cluster) []string {
	if c.ControlPlaneEndpoint.Type != manifest.EndpointExternal || c.ControlPlaneEndpoint.Address == "" {
		return nil
	}
	return []string{c.ControlPlaneEndpoint.HostPort("")}
}

func reachesEndpoint(s *Subject) Finding { return s.reaches(endpointAddresses(s.Cluster)) }

// registryAddresses returns the addresses of the user's own registry.
func registryAddresses(c *manifest.Cluster) []string {
	if c.ImageRegistry.Type != manifest.RegistryExisting || c.ImageRegistry.Address == "" {
		return nil
	}
	return []string{withPort(hostOf(c.ImageRegistry.Address), strconv.Itoa(httpsPort))}
}

const httpsPort = 443

// dialled returns the result of a requested connection.
func (s *Subject) dialled(address string) (node.Dialled, bool) {
	for _, d := range s.Facts.Internet {
		if d.Address == address {
			return d, true
		}
	}
	return node.Dialled{}, false
}

// withPort adds a port to a host without one.
func withPort(address, port string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	if a := addressOf(address); a.Is6() {
		return net.JoinHostPort(a.String(), port)
	}
	return net.JoinHostPort(address, port)
}
