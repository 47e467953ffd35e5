package precheck

import (
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// firewallFix returns commands that open the host's firewalls for the cluster.
func firewallFix(s *Subject) string {
	var list []string
	for _, name := range s.Facts.Firewalls {
		switch name {
		case "firewalld":
			list = append(list, firewalldFix(s))
		case "ufw":
			list = append(list, ufwFix(s))
		default:
			list = append(list, fmt.Sprintf("accept %s in the chains input and forward of %s, and the ports %s between the hosts",
				strings.Join(networkTexts(s), ", "), name, strings.Join(portTexts(s), ", ")))
		}
	}
	return strings.Join(list, "; ") + "; or switch the firewall off"
}

// firewalldFix trusts the networks and interfaces of pods: the zone trusted also lets forwarded packets pass, which open ports
// do not. Masquerading lets pods reach addresses beyond the hosts.
func firewalldFix(s *Subject) string {
	const permanent = "firewall-cmd --permanent"
	text := permanent + " --zone=trusted"
	for _, network := range networkTexts(s) {
		text += " --add-source=" + network
	}
	for _, name := range networkInterfaces(s.Cluster) {
		text += " --add-interface=" + name
	}
	text += "; " + permanent
	for _, p := range portTexts(s) {
		text += " --add-port=" + p
	}
	return text + " --add-masquerade; firewall-cmd --reload"
}

// ufwFix allows the networks of pods as sources and for forwarding, which ufw denies by default.
func ufwFix(s *Subject) string {
	var list []string
	for _, network := range networkTexts(s) {
		list = append(list, "ufw allow from "+network, "ufw route allow from "+network, "ufw route allow to "+network)
	}
	for _, p := range portTexts(s) {
		list = append(list, "ufw allow "+p)
	}
	return strings.Join(list, "; ")
}

// networkTexts returns the networks of pods and services.
func networkTexts(s *Subject) []string {
	var list []string
	for _, of := range clusterNetworks(s.Cluster) {
		list = append(list, of.Prefix.String())
	}
	return list
}

// portTexts returns the ports of the host's roles, as number/protocol. Those of haproxy are on the loopback interface.
func portTexts(s *Subject) []string {
	var list []string
	for _, p := range portsOf(s.Cluster, s.Host.Host) {
		if p.what != "haproxy" {
			list = append(list, fmt.Sprintf("%d/%s", p.number, p.network))
		}
	}
	if hasNetwork(s.Cluster, manifest.NetworkCalico) && s.Host.Is(manifest.RoleCluster) {
		list = append(list, "5473/tcp") // Typha
	}
	return list
}

// networkInterfaces returns the interfaces of the pod network as firewalld writes them: "+" stands for any end of a name. Kube-OVN's
// and Hybridnet's pods have interfaces whose names begin differently; the networks of pods cover these.
func networkInterfaces(c *manifest.Cluster) []string {
	var list []string
	for _, network := range networks(c) {
		switch network {
		case manifest.NetworkFlannel:
			list = append(list, "cni0", "flannel.1", "flannel-v6.1")
		case manifest.NetworkCalico:
			list = append(list, "cali+", "vxlan.calico", "vxlan-v6.calico")
		case manifest.NetworkCilium:
			list = append(list, "lxc+", "cilium_host", "cilium_net", "cilium_vxlan")
		case manifest.NetworkKubeOVN:
			list = append(list, "ovn0", "genev_sys_6081")
		case manifest.NetworkHybridnet, manifest.NetworkMultus, manifest.NetworkNone:
		}
	}
	return list
}
