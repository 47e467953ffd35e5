package precheck

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// addressChecks check the networks of pods and services. Some cannot fail for kkbundle's own files, whose parser
// refuses the same with a line number; they apply to clusters from other sources.
func addressChecks() []Check {
	return []Check{
		{
			ID: "cidr-format", Groups: []string{GroupNetwork}, Level: Block,
			Title: "pods and services have one network each, or one of each family", Rule: hasCIDRs, OfCluster: true,
			Why:    "Kubernetes takes no other number, and IPv4 first",
			Fix:    "write kubernetes.podCIDR and serviceCIDR as a network, or as IPv4,IPv6",
			Source: "KubeKey v4 network_precheck",
		},
		{
			ID: "dual-stack", Groups: []string{GroupNetwork, GroupKubernetes}, Level: Block,
			Title: "this Kubernetes can have two families of addresses", Rule: canDualStack, OfCluster: true,
			Why:    "versions before 1.20 know one family only",
			Fix:    "choose a newer kubernetes.version, or one network each",
			Source: "KubeKey v4 network_precheck (v1.20.0)",
		},
		{
			ID: "cidr-overlap", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the networks of pods and services do not overlap", Rule: hasApartCIDRs, OfCluster: true,
			Why:    "an address could be a pod's and a service's",
			Fix:    "choose another kubernetes.podCIDR or serviceCIDR in the cluster file",
			Source: "Kubespray",
		},
		{
			ID: "address-space", Groups: []string{GroupNetwork}, Level: Block,
			Title: "a node's IPv4 network holds its pods", Rule: holdsPods4, OfCluster: true,
			Why:    "further pods stay in ContainerCreating for lack of an address",
			Fix:    "lower kubernetes.maxPods, or give nodes larger networks (a smaller cni.ipv4MaskSize)",
			Source: "KubeKey v4 network_precheck: maxPods ≤ 2^(32 − mask) − 2",
		},
		{
			ID: "address-space-ipv6", Groups: []string{GroupNetwork}, Level: Block,
			Title: "a node's IPv6 network holds its pods", Rule: holdsPods6, OfCluster: true,
			Why:    "further pods stay in ContainerCreating for lack of an address",
			Fix:    "lower kubernetes.maxPods, or give nodes larger networks (a smaller cni.ipv6MaskSize)",
			Source: "KubeKey v4 network_precheck: maxPods ≤ 2^(128 − mask) − 2 (which reads the IPv4 mask there)",
		},
		{
			ID: "node-networks", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the pod network has a part for each node", Rule: holdsNodes, OfCluster: true,
			Why:    "further nodes get no network for their pods and never become ready",
			Fix:    "choose a larger kubernetes.podCIDR, or give nodes smaller networks (a larger cni.ipv4MaskSize or ipv6MaskSize)",
			Source: "Kubespray: 2^(node prefix − pods prefix) ≥ nodes, but for calico and none",
		},
		{
			ID: "service-network", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the service network has a size that the API server takes", Rule: hasServiceSize, OfCluster: true,
			Why:    "the API server does not start with a larger one, and the cluster's DNS takes the tenth address",
			Fix:    "choose a kubernetes.serviceCIDR from /12 to /28 (IPv6: from /108 to /124)",
			Source: "kube-apiserver: at most 20 host bits; kubeadm: at least 10 addresses",
		},
	}
}

// pluginChecks check the pod network and kube-proxy.
func pluginChecks(known network.Table) []Check {
	list := []Check{{
		ID: "plugin", Groups: []string{GroupNetwork}, Level: Block, Title: "the pod network is a known one",
		Rule: isKnownPlugin, OfCluster: true,
		Why:    "kkbundle cannot install it, so pods would get no addresses",
		Fix:    "write one of " + strings.Join(known.Names(), ", ") + " into cni.type of the cluster file",
		Source: "KubeKey v4 network_precheck, where kube-ovn and kubeovn are one",
	}}
	for _, n := range known {
		if n.Kubernetes != nil {
			list = append(list, networkReleaseCheck(n))
		}
	}
	return append(list, Check{
		ID: "proxy-mode", Groups: []string{GroupNetwork}, Level: Block,
		Title: "kube-proxy's mode goes with this Kubernetes", Rule: isFittingMode, OfCluster: true,
		LevelOf: modeLevel, Varies: "warns of ipvs, which works and is deprecated since 1.35",
		Why:    "kube-proxy does not start in an unknown mode; ipvs is deprecated upstream",
		Fix:    "write iptables, or nftables from 1.31 on, into kubernetes.proxyMode of the cluster file",
		Source: "Kubespray; Kubernetes KEP-3866 (nftables) and KEP-5495 (ipvs)",
	})
}

func hasCIDRs(s *Subject) Finding {
	var wrong []string
	for _, of := range []struct {
		name string
		list scalar.CIDRs
	}{{"pods", s.Cluster.Kubernetes.PodCIDR}, {"services", s.Cluster.Kubernetes.ServiceCIDR}} {
		switch list := of.list; {
		case len(list) > 2:
			wrong = append(wrong, of.name+" have "+plain.Count(len(list), "network"))
		case len(list) == 2 && !(is4(list[0]) && is6(list[1])):
			wrong = append(wrong, fmt.Sprintf("%s have %s", of.name, list))
		}
	}
	if pods, services := len(s.Cluster.Kubernetes.PodCIDR), len(s.Cluster.Kubernetes.ServiceCIDR); len(wrong) == 0 &&
		pods != services {
		wrong = append(wrong, fmt.Sprintf("pods have %s, services %s", plain.Count(pods, "network"),
			plain.Count(services, "network")))
	}
	return none(wrong, fmt.Sprintf("pods %s, services %s", s.Cluster.Kubernetes.PodCIDR,
		s.Cluster.Kubernetes.ServiceCIDR))
}

func canDualStack(s *Subject) Finding {
	if len(s.Cluster.Kubernetes.PodCIDR) < 2 && len(s.Cluster.Kubernetes.ServiceCIDR) < 2 {
		return skip()
	}
	if isBefore(s.Cluster.Kubernetes.Version, 1, 20) {
		return fail(s.Cluster.Kubernetes.Version)
	}
	return pass(s.Cluster.Kubernetes.Version)
}

func hasApartCIDRs(s *Subject) Finding {
	all := clusterNetworks(s.Cluster)
	var wrong []string
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Overlaps(b.Prefix) {
				wrong = append(wrong, fmt.Sprintf("%s of the %s and %s of the %s", a.Prefix, a.name, b.Prefix, b.name))
			}
		}
	}
	return none(wrong, "they do not")
}

func holdsPods4(s *Subject) Finding {
	if !slices.ContainsFunc(s.Cluster.Kubernetes.PodCIDR, is4) {
		return skip()
	}
	return holdsPods(s.Cluster.Kubernetes.MaxPods, s.Cluster.CNI.IPv4MaskSize, 32)
}

func holdsPods6(s *Subject) Finding {
	if !slices.ContainsFunc(s.Cluster.Kubernetes.PodCIDR, is6) {
		return skip()
	}
	return holdsPods(s.Cluster.Kubernetes.MaxPods, s.Cluster.CNI.IPv6MaskSize, 128)
}

// holdsPods compares the number of pods with the addresses of a network without its first and last one.
func holdsPods(pods, mask, length int) Finding {
	const enough = 31 // host bits that are enough for any number of pods
	free := length - mask
	if free >= enough {
		return pass(fmt.Sprintf("a /%d", mask))
	}
	holds := 0
	if free > 0 {
		holds = 1<<free - 2
	}
	text := fmt.Sprintf("a /%d holds %d, kubernetes.maxPods is %d", mask, holds, pods)
	if pods > holds {
		return fail(text)
	}
	return pass(text)
}

// holdsNodes ignores networks without a fixed share for each node.
func holdsNodes(s *Subject) Finding {
	if !slices.ContainsFunc(s.networks(), func(n network.Network) bool { return n.NodeShares }) {
		return skip()
	}
	nodes := len(s.fleet.members[manifest.RoleCluster])
	var wrong []string
	for _, p := range s.Cluster.Kubernetes.PodCIDR {
		mask := s.Cluster.CNI.IPv4MaskSize
		if is6(p) {
			mask = s.Cluster.CNI.IPv6MaskSize
		}
		if needs := bits.Len(uint(max(nodes, 1) - 1)); mask-p.Bits() < needs {
			wrong = append(wrong, fmt.Sprintf("%s cannot give %s a /%d each", p, plain.Count(nodes, "node"), mask))
		}
	}
	return none(wrong, plain.Count(nodes, "node"))
}

func hasServiceSize(s *Subject) Finding {
	const least, most = 4, 20
	var wrong []string
	for _, p := range s.Cluster.Kubernetes.ServiceCIDR {
		if free := hostBits(p); free < least || free > most {
			wrong = append(wrong, p.String())
		}
	}
	return none(wrong, s.Cluster.Kubernetes.ServiceCIDR.String())
}

func hostBits(p netip.Prefix) int { return p.Addr().BitLen() - p.Bits() }

// isKnownPlugin cannot fail for kkbundle's own files, whose parser refuses other names.
func isKnownPlugin(s *Subject) Finding {
	networks := s.networks()
	for _, n := range networks {
		if !s.known.Has(n.Name) {
			return fail(string(n.Name))
		}
	}
	return pass(strings.Join(networks.Names(), " with "))
}

// networkReleaseCheck checks that the cluster's Kubernetes can have a pod network which needs a later one than the
// oldest.
func networkReleaseCheck(n network.Network) Check {
	return Check{
		ID: string(n.Name), Groups: []string{GroupNetwork}, Level: Block, Title: "this Kubernetes can have " + n.Title,
		OfCluster: true,
		Rule: func(s *Subject) Finding {
			version := s.Cluster.Kubernetes.Version
			switch {
			case !s.networks().Has(n.Name):
				return skip()
			case isBefore(version, n.Kubernetes.Least...):
				return fail(version)
			default:
				return pass(version)
			}
		},
		Why:    n.Kubernetes.Why,
		Fix:    "choose a newer kubernetes.version or another cni.type",
		Source: n.Kubernetes.Source,
	}
}

func isFittingMode(s *Subject) Finding {
	mode, version := s.Cluster.Kubernetes.ProxyMode, s.Cluster.Kubernetes.Version
	switch {
	case mode == manifest.ProxyNFTables && isBefore(version, 1, 31):
		return failf("%s has no nftables mode by default", version)
	case mode == manifest.ProxyIPVS && version != "" && !isBefore(version, 1, 35):
		return failf("ipvs is deprecated in %s", version)
	default:
		return pass(string(mode))
	}
}

func modeLevel(s *Subject) Level {
	if s.Cluster.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		return Warn
	}
	return Block
}
