package installer

import (
	"net/netip"
	"strconv"

	"github.com/kkbundle/kkbundle/manifest"
)

// kubeadm's own defaults, which kube-controller-manager needs no flags for.
const (
	defaultMask4 = 24
	defaultMask6 = 64
)

// networkPart is what the cluster's networks add: what each node takes of them, and the control planes' second addresses,
// since kubeadm puts only the one that it advertises into certificates.
func (r *Site) networkPart() configPart {
	part := configPart{flags: map[string]map[string]string{controllerManager: maskFlags(r.cluster)}}
	for _, t := range r.withRole(manifest.RoleControlPlane) {
		if t.IP6.IsValid() {
			part.names = append(part.names, t.IP6.String())
		}
	}
	if r.cluster.Kubernetes.ProxyMode == manifest.ProxyIPVS && r.cluster.ControlPlaneEndpoint.Type == manifest.EndpointKubeVIP {
		// kube-vip answers for its address by ARP; with services' addresses on an interface, every node would.
		part.kubeProxy = document{"ipvs": document{"strictARP": true}}
	}
	return part
}

func maskFlags(c *manifest.Cluster) map[string]string {
	flags := map[string]string{}
	if c.CNI.IPv4MaskSize != defaultMask4 && hasFamily(c, netip.Addr.Is4) {
		flags["node-cidr-mask-size-ipv4"] = strconv.Itoa(c.CNI.IPv4MaskSize)
	}
	if c.CNI.IPv6MaskSize != defaultMask6 && hasFamily(c, netip.Addr.Is6) {
		flags["node-cidr-mask-size-ipv6"] = strconv.Itoa(c.CNI.IPv6MaskSize)
	}
	return flags
}
