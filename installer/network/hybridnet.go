package network

import (
	_ "embed"
	"net/netip"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

//go:embed scripts/remove-hybridnet.sh
var removeHybridnet string

// The sources are those of v0.8.8, with charts/hybridnet of 0.6.8.
func hybridnet() Network {
	return Network{
		Name: manifest.NetworkHybridnet, Title: "Hybridnet",
		// Its Felix and Typha are Calico's v3.20.2. They ask for discovery.k8s.io/v1beta1, which Kubernetes 1.25 has
		// removed, again and again, and Felix is never ready then (github.com/alibaba/hybridnet/issues/372).
		Enforces: true, EnforcesBefore: semver.New(1, 25, 0, "", ""),
		Images: []string{"hybridnet"},
		// The script install-cni.sh with the chart's daemon.neededCommunityCNIPlugins.
		Replaces: func(*manifest.Cluster) []string { return []string{"loopback", "bandwidth"} },
		Chart:    &Chart{Everywhere: true, Values: hybridnetValues},
		Ports: []Port{
			{Protocol: "udp", Number: 8472, For: "VXLAN", Caller: PeersCall},
			{Protocol: "tcp", Number: 5473, For: "Typha", Caller: MembersCall, Maybe: true},
			{Protocol: "tcp", Number: 9898, For: "its webhook", Some: true},
			{Protocol: "tcp", Number: 8091, For: "metrics of its daemon", Caller: NobodyCalls},
			{Protocol: "tcp", Number: 11021, For: "health of its daemon", Caller: NobodyCalls},
			{Protocol: "tcp", Number: 50051, For: "gobgp", Caller: NobodyCalls},
		},
		Listeners: []string{"hybridnet-daemo", "calico-typha"},
		// Its VXLAN interface is the host's with an ending: for a firewall, the networks of pods cover it.
		Interfaces: []Interface{{"*.vxlan*", 0}, {"hybr*", Carries | Telling}, {"h_*", 0}},
		// The daemon sets a queue of the kind prio on its VXLAN interface, with a filter that changes addresses. It and
		// Felix match sets of addresses.
		Modules:      []string{"vxlan", "sch_prio", "cls_u32", "act_pedit", "ip_set", "xt_set"},
		DefaultRoute: true, // initNicConfig of pkg/daemon/config looks for one, also where interfaces are named
		Kubernetes: &Kubernetes{
			Least: []int{1, 16}, Why: "Hybridnet uses interfaces that Kubernetes has since 1.16",
			Source: "KubeKey v4 network_precheck (v1.16.0)",
		},
		Agents:  []string{"hybridnet-daemon"},
		Configs: []string{"06-hybridnet.conflist", "00-hybridnet.conflist"},
		Rules:   []string{"HYBRIDNET-", "cali-", `"cali:`}, // Felix enforces its policies
		Leaves: Leaves{
			Paths:  []string{"/opt/cni/bin/hybridnet"},
			Sets:   []string{"HYBR-", "inet6:HYBR-", "cali"},
			Script: Script{Name: "remove-hybridnet.sh", Text: removeHybridnet},
		},
	}
}

// hybridnetValues names the nodes' addresses, of which each daemon takes the one that its interface has. That is the
// interface of the default route, unless cni.values have daemon.preferVxlanInterfaces.
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
	daemon := map[string]any{"enableFelixPolicy": hybridnet().EnforcesIn(s.Cluster)}
	if len(addresses) > 0 {
		daemon["vtepAddressCIDRs"] = strings.Join(addresses, ",")
	}
	values["daemon"] = daemon
	return values, nil
}
