package task

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

// NewHost returns the Host of an inventory host, with the addresses that the inventory names.
func (s *Site) NewHost(h manifest.Host) *Host {
	t := &Host{Host: h, IP: h.InternalIPv4, Site: s}
	if !s.Has4() {
		t.IP = h.InternalIPv6
	} else if s.Has6() {
		t.IP6 = h.InternalIPv6
	}
	return t
}

// Has4 reports whether the cluster has IPv4 addresses.
func (s *Site) Has4() bool { return HasFamily(s.Cluster, netip.Addr.Is4) }

// Has6 reports whether the cluster has IPv6 addresses.
func (s *Site) Has6() bool { return HasFamily(s.Cluster, netip.Addr.Is6) }

// Options of ip(8) for the address families.
const (
	Family4 = "-4"
	Family6 = "-6"
)

// HasFamily reports whether the cluster has services in the address family that is accepts.
func HasFamily(c *manifest.Cluster, is func(netip.Addr) bool) bool {
	return slices.ContainsFunc(c.Kubernetes.ServiceCIDR, func(p netip.Prefix) bool { return is(p.Addr()) })
}

// HasAddresses reports whether the host has an address in each family that it needs. A host that is no node needs
// only one.
func (t *Host) HasAddresses() bool {
	both := t.Is(manifest.RoleCluster) && t.Site.Has4() && t.Site.Has6()
	return t.IP.IsValid() && (t.IP6.IsValid() || !both)
}

// Addresses returns the node's addresses; the cluster's first family comes first.
func (t *Host) Addresses() []netip.Addr {
	if t.IP6.IsValid() {
		return []netip.Addr{t.IP, t.IP6}
	}
	return []netip.Addr{t.IP}
}

// An AddressError means that a host's address in the cluster is unknown.
type AddressError struct {
	Host string
	Six  bool // the IPv6 address is unknown
}

// Error names the host and the reason.
func (e *AddressError) Error() string {
	if e.Six {
		return e.Host + ": no IPv6 address for the cluster: the inventory names none, and the host has none or several"
	}
	return e.Host + ": no address for the cluster: the inventory names none, and the host has no default route to choose one by"
}

// Hint returns the remedy.
func (e *AddressError) Hint() string {
	if e.Six {
		return "give the host internalIPv6 in the inventory"
	}
	return "give the host internalIPv4 in the inventory"
}

// Endpoint returns the address of the API server for nodes and clients, as host:port. If the cluster file names none,
// the endpoint recorded at the cluster's creation wins: another control plane may be the first by now.
func (s *Site) Endpoint() string {
	e := s.Cluster.ControlPlaneEndpoint
	switch {
	case e.Address == "" && e.Type == manifest.EndpointHAProxy:
		return net.JoinHostPort("api."+s.Cluster.Metadata.Name+".internal", strconv.Itoa(manifest.DefaultPort))
	case e.Address == "" && s.recordedEndpoint() != "":
		return s.recordedEndpoint()
	}
	return e.HostPort(s.FirstControlPlane().IP.String())
}

// Loopback returns the loopback address on which each node reaches an API server.
func (s *Site) Loopback() netip.Addr {
	if s.FirstControlPlane().IP.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// NodeReadyTimeout bounds the wait until a node is ready.
const NodeReadyTimeout = 3 * time.Minute

// NthAddress returns the n-th address of a network; 0 is the network itself.
func NthAddress(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// Loopback returns the loopback address in the family of a node's address; etcd listens there.
func Loopback(ip string) string {
	if strings.Contains(ip, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// Defaults of kube-controller-manager; they need no flags.
const (
	defaultMask4 = 24
	defaultMask6 = 64
)

// MaskFlags returns the flags of kube-controller-manager for the sizes of the nodes' pod networks.
func MaskFlags(c *manifest.Cluster) map[string]string {
	flags := map[string]string{}
	if c.CNI.IPv4MaskSize != defaultMask4 && HasFamily(c, netip.Addr.Is4) {
		flags["node-cidr-mask-size-ipv4"] = strconv.Itoa(c.CNI.IPv4MaskSize)
	}
	if c.CNI.IPv6MaskSize != defaultMask6 && HasFamily(c, netip.Addr.Is6) {
		flags["node-cidr-mask-size-ipv6"] = strconv.Itoa(c.CNI.IPv6MaskSize)
	}
	return flags
}

// TakesServiceAddress reports whether the DNS cache also answers at the address of the DNS service. Pods then need no
// other DNS address and reach CoreDNS itself while the cache is down. It requires kube-proxy's iptables mode: in other
// modes the address is on an interface of kube-proxy, or its packets pass kube-proxy first.
func TakesServiceAddress(c *manifest.Cluster) bool {
	return c.Kubernetes.ProxyMode == manifest.ProxyIPTables
}
