package network

import (
	"net/netip"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

func hybridnet() Network {
	return Network{
		Name: manifest.NetworkHybridnet, Title: "Hybridnet", Enforces: true,
		Images: []string{"hybridnet"},
		// Its script install-cni.sh, unless NEEDED_COMMUNITY_CNI_PLUGINS says more.
		Replaces: func(*manifest.Cluster) []string { return []string{"loopback"} },
		Chart:    &Chart{Everywhere: true, Values: hybridnetValues},
		Ports:    []Port{{Protocol: "udp", Number: 8472, For: "VXLAN", Caller: PeersCall}},
		// Its pods have interfaces whose names begin differently: for a firewall, the networks of pods cover them.
		Interfaces: []Interface{{"*.vxlan*", 0}, {"h_*", 0}},
		Modules:    []string{"vxlan"},
		Kubernetes: &Kubernetes{
			Least: []int{1, 16}, Why: "Hybridnet uses interfaces that Kubernetes has since 1.16",
			Source: "KubeKey v4 network_precheck (v1.16.0)",
		},
		Agents:  []string{"hybridnet-daemon"},
		Configs: []string{"06-hybridnet.conflist", "00-hybridnet.conflist"},
		Rules:   []string{"HYBRIDNET-"},
		Leaves: Leaves{
			Paths: []string{"/var/run/hybridnet", "/opt/cni/bin/hybridnet"},
			Sets:  []string{"hybr", "cali"},
		},
	}
}

// hybridnetValues names the nodes' addresses, from which the daemon finds its interface. Without a default route it
// also needs cni.values with daemon.preferVxlanInterfaces.
func hybridnetValues(s Site) (map[string]any, error) {
	images, err := catalog.ImagesOf(s.Cluster, "hybridnet")
	if err != nil {
		return nil, err
	}
	pods := s.Cluster.Kubernetes.PodCIDR[0]
	version, family := "4", "IPv4"
	if pods.Addr().Is6() {
		version, family = "6", "IPv6"
	}
	// Replicas run on separate nodes. The chart's default is a label that control planes lack since 1.24.
	pods3 := map[string]any{
		"replicas":     min(max(len(s.ControlPlanes), 1), 3),
		"nodeSelector": map[string]any{kube.ControlPlaneLabel: ""},
	}
	values := map[string]any{
		"init":            map[string]any{"cidr": pods.String(), "ipVersion": version},
		"defaultIPFamily": family,
		"manager":         pods3, "webhook": pods3, "typha": pods3,
	}
	if own, ok := images["hybridnet"]; ok { // else the chart's own
		values["images"] = map[string]any{
			"registryURL": own.Registry,
			"hybridnet":   map[string]any{"image": own.Repository, "tag": own.Tag},
		}
	}
	var addresses []string
	for _, n := range s.Nodes {
		addresses = append(addresses, netip.PrefixFrom(n.IP, n.IP.BitLen()).String())
	}
	if len(addresses) > 0 {
		values["daemon"] = map[string]any{"vtepAddressCIDRs": strings.Join(addresses, ",")}
	}
	return values, nil
}
