package task

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// NewHost makes the Target of a host with what the inventory says of its addresses.
func (r *Site) NewHost(h manifest.Host) *Host {
	t := &Host{Host: h, IP: h.InternalIPv4, Site: r}
	if !r.Has4() {
		t.IP = h.InternalIPv6
	} else if r.has6() {
		t.IP6 = h.InternalIPv6
	}
	return t
}

// Has4 and has6 tell which families of addresses the cluster has.
func (r *Site) Has4() bool { return HasFamily(r.Cluster, netip.Addr.Is4) }
func (r *Site) has6() bool { return HasFamily(r.Cluster, netip.Addr.Is6) }

// Family4 and Family6 are the options of ip(8) for the families.
const (
	Family4 = "-4"
	Family6 = "-6"
)

func HasFamily(c *manifest.Cluster, is func(netip.Addr) bool) bool {
	return slices.ContainsFunc(c.Kubernetes.ServiceCIDR, func(p netip.Prefix) bool { return is(p.Addr()) })
}

// IsAddressed tells whether an address is known for each family that the host needs one of: hosts that are no nodes are
// reached by one.
func (t *Host) IsAddressed() bool {
	both := t.Is(manifest.RoleCluster) && t.Site.Has4() && t.Site.has6()
	return t.IP.IsValid() && (t.IP6.IsValid() || !both)
}

// FindAddresses takes addresses that the inventory does not give from what the host says of itself.
func (t *Host) FindAddresses(f *node.Facts) {
	if !t.IP.IsValid() {
		t.IP = precheck.AddressFor(t.Site.Cluster, t.Host, f)
	}
	if t.Site.Has4() && t.Site.has6() && !t.IP6.IsValid() {
		t.IP6 = precheck.Address6(t.Host, f)
	}
}

// Addresses are the node's, the one of the cluster's first family first.
func (t *Host) Addresses() []netip.Addr {
	if t.IP6.IsValid() {
		return []netip.Addr{t.IP, t.IP6}
	}
	return []netip.Addr{t.IP}
}

// An AddressError says that a host's address in the cluster is not known.
type AddressError struct {
	Host string
	// Six says that it is the IPv6 address.
	Six bool
}

// Error names the host.
func (e *AddressError) Error() string {
	if e.Six {
		return e.Host + ": which of its IPv6 addresses the cluster uses is not known: the inventory does not say, and it has none or several"
	}
	return e.Host + ": which of its addresses the cluster uses is not known: the inventory does not say, and there is no default route to tell by"
}

// Hint says what to do about it.
func (e *AddressError) Hint() string {
	if e.Six {
		return "give the host internalIPv6 in the inventory"
	}
	return "give the host internalIPv4 in the inventory"
}

// Endpoint is where nodes and clients reach the API server, as host:port. Without an address in the cluster file it is the
// one that the cluster was made with: the first control plane may be another one by now.
func (r *Site) Endpoint() string {
	e := r.Cluster.ControlPlaneEndpoint
	switch {
	case e.Address == "" && e.Type == manifest.EndpointHAProxy:
		return net.JoinHostPort("api."+r.Cluster.Metadata.Name+".internal", strconv.Itoa(manifest.DefaultPort))
	case e.Address == "" && r.endpointMade() != "":
		return r.endpointMade()
	}
	return e.HostPort(r.FirstControlPlane().IP.String())
}

// Loopback is the address under which each node finds an API server on itself.
func (r *Site) Loopback() netip.Addr {
	if r.FirstControlPlane().IP.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

const NodesWait = 3 * time.Minute

func Nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// Loopback is the address of the Loopback interface in the family of a node's address: etcd listens there.
func Loopback(ip string) string {
	if strings.Contains(ip, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// kubeadm's own defaults, which kube-controller-manager needs no flags for.
const (
	defaultMask4 = 24
	defaultMask6 = 64
)

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
