package manifest

import (
	"net/netip"
	"slices"
)

// NodeDNSAddress is the link-local address of the DNS cache on nodes, the same as KubeKey's and Kubespray's.
const NodeDNSAddress = "169.254.25.10"

// AsksItself reports whether CoreDNS of the cluster would ask itself if it asked the nameserver at an address: one of
// the host, the DNS cache or a service. Hosts that were nodes before may have such a line in /etc/resolv.conf.
func (c *Cluster) AsksItself(nameserver string) bool {
	a, err := netip.ParseAddr(nameserver)
	if err != nil {
		return false
	}
	a = a.Unmap().WithZone("")
	return a.IsLoopback() || a.String() == NodeDNSAddress ||
		slices.ContainsFunc(c.Kubernetes.ServiceCIDR, func(services netip.Prefix) bool { return services.Contains(a) })
}
