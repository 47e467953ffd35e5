package installer

import (
	"net/netip"
	"slices"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// newTarget makes the Target of a host with what the inventory says of its addresses.
func (r *Site) newTarget(h manifest.Host) *Target {
	t := &Target{Host: h, IP: h.InternalIPv4, run: r}
	if !r.has4() {
		t.IP = h.InternalIPv6
	} else if r.has6() {
		t.IP6 = h.InternalIPv6
	}
	return t
}

// has4 and has6 tell which families of addresses the cluster has.
func (r *Site) has4() bool { return hasFamily(r.cluster, netip.Addr.Is4) }
func (r *Site) has6() bool { return hasFamily(r.cluster, netip.Addr.Is6) }

// family4 and family6 are the options of ip(8) for the families.
const (
	family4 = "-4"
	family6 = "-6"
)

func hasFamily(c *manifest.Cluster, is func(netip.Addr) bool) bool {
	return slices.ContainsFunc(c.Kubernetes.ServiceCIDR, func(p netip.Prefix) bool { return is(p.Addr()) })
}

// isAddressed tells whether an address is known for each family that the host needs one of: hosts that are no nodes are
// reached by one.
func (t *Target) isAddressed() bool {
	both := t.Is(manifest.RoleCluster) && t.run.has4() && t.run.has6()
	return t.IP.IsValid() && (t.IP6.IsValid() || !both)
}

// findAddresses takes addresses that the inventory does not give from what the host says of itself.
func (t *Target) findAddresses(f *node.Facts) {
	if !t.IP.IsValid() {
		t.IP = precheck.AddressFor(t.run.cluster, t.Host, f)
	}
	if t.run.has4() && t.run.has6() && !t.IP6.IsValid() {
		t.IP6 = precheck.Address6(t.Host, f)
	}
}

// addresses are the node's, the one of the cluster's first family first.
func (t *Target) addresses() []netip.Addr {
	if t.IP6.IsValid() {
		return []netip.Addr{t.IP, t.IP6}
	}
	return []netip.Addr{t.IP}
}
