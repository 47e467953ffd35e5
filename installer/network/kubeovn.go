package network

import (
	"context"
	_ "embed"
	"net/netip"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

//go:embed scripts/remove-kube-ovn.sh
var removeKubeOVN string

// ovnLabel marks the nodes of kube-ovn's databases
// (https://kubeovn.github.io/docs/stable/en/start/one-step-install/).
const ovnLabel = "kube-ovn/role"

// The sources are those of v1.15.0.
func kubeOVN() Network {
	return Network{
		Name: manifest.NetworkKubeOVN, Title: "Kube-OVN", Enforces: true,
		Images: []string{"kube-ovn"},
		// dist/images/install-cni.sh of v1.15.0.
		Replaces: func(*manifest.Cluster) []string { return []string{"loopback", "macvlan", "portmap"} },
		Chart:    &Chart{Everywhere: true, Values: kubeOVNValues, Before: labelDatabases},
		Ports: []Port{
			{Protocol: "udp", Number: 6081, For: "Geneve", Caller: PeersCall},
			{Protocol: "tcp", Number: 6641, For: "OVN", Caller: MembersCall},
			{Protocol: "tcp", Number: 6642, For: "OVN", Caller: MembersCall},
			{Protocol: "tcp", Number: 6643, For: "OVN between control planes", Some: true},
			{Protocol: "tcp", Number: 6644, For: "OVN between control planes", Some: true},
			{Protocol: "tcp", Number: 10665, For: "health of its daemon", Caller: NobodyCalls},
		},
		Listeners: []string{"ovsdb-server", "kube-ovn-daemon"},
		// Its pods have interfaces whose names begin differently: for a firewall, the networks of pods cover them.
		// Open vSwitch makes some of these for others, too.
		Interfaces: []Interface{
			{"ovn0", Carries | Stays | Telling},
			{"ovs-system", Stays},
			{"br-int", Stays},
			{"genev_sys_*", 0},
			{"genev_sys_6081", Carries | Stays},
			{"vxlan_sys_*", 0},
			{"vxlan_sys_4789", Stays},
			{"mirror0", Stays},
			{"*_h", 0},
		},
		Modules: []string{"openvswitch", "geneve", "ip_set", "xt_set"}, // its rules match sets of addresses
		Agents:  []string{"kube-ovn-cni"},
		Configs: []string{"01-kube-ovn.conflist"},
		// In the chains of the kernel's own, sets and a comment tell its rules.
		Rules: []string{"OVN-", "ovn40", "ovn60", `"ovn-subnet-gateway`, "ovn-subnet-gateway"},
		Leaves: Leaves{
			Paths: []string{
				"/var/run/openvswitch", "/var/run/ovn", "/etc/openvswitch", "/var/log/openvswitch", "/var/log/ovn",
				"/var/log/kube-ovn",
				"/etc/origin/openvswitch", "/etc/origin/ovn", "/etc/origin/ovs_ipsec_keys", "/opt/cni/bin/kube-ovn",
				"/usr/local/bin/kubectl-ko", // by install-cni.sh, with cni_conf.MOUNT_LOCAL_BIN_DIR
			},
			Sets:   []string{"ovn"},
			Script: Script{Name: "remove-kube-ovn.sh", Text: removeKubeOVN},
		},
	}
}

func labelDatabases(ctx context.Context, on Kubectl, s Site) error {
	for _, n := range s.ControlPlanes {
		if _, err := on.Kubectl(ctx, "label", "node", n.Name, "--overwrite", ovnLabel+"=master"); err != nil {
			return err
		}
	}
	return nil
}

// kubeOVNValues names no interface: kube-ovn uses that of each node's address. Its pinger tests no external address.
func kubeOVNValues(s Site) (map[string]any, error) {
	images, err := catalog.PickImages(s.Cluster, "kube-ovn", "kube-ovn", "vpc-nat-gateway")
	if err != nil {
		return nil, err
	}
	k := s.Cluster.Kubernetes
	stack := "ipv4"
	switch {
	case len(k.PodCIDR) > 1:
		stack = "dual_stack"
	case k.PodCIDR[0].Addr().Is6():
		stack = "ipv6"
	}
	var gateways, masters []string
	for _, p := range k.PodCIDR {
		gateways = append(gateways, p.Masked().Addr().Next().String())
	}
	for _, n := range s.ControlPlanes {
		masters = append(masters, n.IP.String())
	}
	if len(masters) == 0 { // a build knows no nodes, and the chart looks for them in the cluster then, and fails
		masters = []string{netip.IPv6Loopback().String()}
	}
	repository := func(i catalog.ImageName) string { return i.Full[strings.LastIndexByte(i.Full, '/')+1:] }
	return map[string]any{
		"global": map[string]any{
			"registry": map[string]any{"address": strings.TrimSuffix(images[0].Full, "/"+repository(images[0]))},
			"images": map[string]any{
				"kubeovn":    map[string]any{"repository": repository(images[0]), "tag": images[0].Tag},
				"natgateway": map[string]any{"repository": repository(images[1]), "tag": images[1].Tag},
			},
		},
		"MASTER_NODES": strings.Join(masters, ","),
		"networking":   map[string]any{"NET_STACK": stack},
		stack: map[string]any{
			"POD_CIDR": k.PodCIDR.String(), "POD_GATEWAY": strings.Join(gateways, ","),
			"SVC_CIDR":                k.ServiceCIDR.String(),
			"PINGER_EXTERNAL_ADDRESS": "", "PINGER_EXTERNAL_DOMAIN": "",
		},
	}, nil
}
