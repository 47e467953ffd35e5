package network

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Namespaces of Calico's operator (https://docs.tigera.io/calico/latest/reference/installation/api).
const (
	calicoNamespace   = "calico-system"
	operatorNamespace = "tigera-operator"
)

// calicoWait limits the wait for Calico's operator to install the network.
const calicoWait = 5 * time.Minute

//go:embed scripts/remove-calico.sh
var removeCalico string

func calico() Network {
	return Network{
		Name: manifest.NetworkCalico, Title: "Calico", Enforces: true,
		Images: []string{"calico"},
		Chart: &Chart{
			Name: "tigera-operator", Namespace: operatorNamespace, Values: calicoValues,
			// Releases from v3.32 on have them there.
			Definitions: &Definitions{
				Component: "calico-crds", Chart: "crd.projectcalico.org.v1",
				Established: []string{"installations.operator.tigera.io", "apiservers.operator.tigera.io"},
			},
			After: isAvailable, Wait: calicoWait,
		},
		Replaces:   calicoReplaces,
		Programs:   []Program{{Component: "calicoctl", Path: "/usr/local/bin/calicoctl"}},
		Namespaces: []string{calicoNamespace},
		Ports: []Port{
			{Protocol: "udp", Number: 4789, For: "VXLAN", Caller: PeersCall},
			{Protocol: "tcp", Number: 179, For: "BGP", Caller: PeersCall, Maybe: true},
			{Protocol: "tcp", Number: 5473, For: "Typha", Some: true},
		},
		Listeners: []string{"bird", "calico-node"},
		// https://docs.tigera.io/calico/latest/reference/faq (why 169.254.1.1)
		Gateway: netip.AddrFrom4([4]byte{169, 254, 1, 1}),
		Interfaces: []Interface{
			{"cali*", Carries | Telling},
			{"tunl*", 0}, // the kernel makes tunl0 when its module is loaded
			{"vxlan.calico", Carries | Stays | Telling},
			{"vxlan-v6.calico", Carries | Stays | Telling},
			{"wireguard.cali", Stays | Telling},
			{"wg-v6.cali", Stays},
		},
		Modules: []string{"vxlan", "ip_set", "xt_set"}, // Felix matches sets of addresses
		Dirs:    calicoDirs,
		Agents:  []string{"calico-node"},
		Configs: []string{"10-calico.conflist"},
		Rules:   []string{"cali-", `"cali:`},
		Leaves: Leaves{
			Paths: []string{
				"/var/lib/calico", "/var/run/calico", "/var/run/nodeagent", "/var/log/calico", "/opt/cni/bin/calico",
				"/opt/cni/bin/calico-ipam", "/etc/calico",
			},
			Tables: []string{"calico"}, Sets: []string{"cali"},
			// The init container ebpf-bootstrap mounts control groups in /run/calico, with every data plane.
			Mounts: []string{"/run/calico/", "/var/run/calico/"},
			Script: Script{Name: "remove-calico.sh", Text: removeCalico},
		},
	}
}

// isAvailable reads the status of the network: the chart is ready as soon as the operator runs. The messages of the
// operator's conditions name the pods that it waits for.
func isAvailable(ctx context.Context, on Kubectl) error {
	var network struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	client := kube.Client{Kubectl: func(ctx context.Context, c kube.Command) ([]byte, error) {
		return on.Kubectl(ctx, c.Args...)
	}}
	if err := client.Get(ctx, &network, "tigerastatus", "calico"); err != nil {
		return err
	}
	if meta.IsStatusConditionTrue(network.Status.Conditions, "Available") {
		return nil
	}
	said := ""
	for _, c := range network.Status.Conditions {
		if c.Status == metav1.ConditionTrue && c.Message != "" {
			said += "; " + c.Type + ": " + strings.Join(strings.Fields(c.Message), " ")
		}
	}
	return fmt.Errorf("tigerastatus calico is not Available%s", said)
}

// calicoValues selects VXLAN between all nodes and no BGP: that works on any network, and needs one UDP port. Nodes are
// identified by their Kubernetes addresses, because a default route may be missing.
func calicoValues(s Site) (map[string]any, error) {
	images, err := catalog.PickImages(s.Cluster, "calico", "node")
	if err != nil {
		return nil, err
	}
	node := images[0]
	network := map[string]any{"bgp": "Disabled", "linuxDataplane": "Iptables"}
	var pools []any
	for _, p := range s.Cluster.Kubernetes.PodCIDR {
		pools = append(pools, map[string]any{
			"cidr": p.String(), "blockSize": calicoBlock(s.Cluster, p), "encapsulation": "VXLAN",
			"natOutgoing": "Enabled", "nodeSelector": "all()",
		})
		family := "nodeAddressAutodetectionV4"
		if p.Addr().Is6() {
			family = "nodeAddressAutodetectionV6"
		}
		network[family] = map[string]any{"kubernetes": "NodeInternalIP"}
	}
	network["ipPools"] = pools
	if nft, err := calicoNFTables(s.Cluster); err != nil {
		return nil, err
	} else if nft {
		network["linuxDataplane"] = "Nftables"
	}
	values := map[string]any{
		// The operator pulls the images of its pods from this registry, as calico/….
		"installation": map[string]any{
			"registry":      strings.TrimSuffix(node.Full, "/calico/node"),
			"calicoNetwork": network,
		},
		// Flow logs and their web page are off by default; the bundle has their images.
		"goldmane": map[string]any{"enabled": false},
		"whisker":  map[string]any{"enabled": false},
	}
	// The chart names the operator's own image, unless a catalog does.
	all, err := catalog.ImagesOf(s.Cluster, "calico")
	if operator, ok := all["operator"]; ok {
		values["tigeraOperator"] = map[string]any{
			"registry": operator.Registry, "image": operator.Repository,
			"version": operator.Tag,
		}
	}
	return values, err
}

// calicoBlock returns the size of the address blocks that nodes allocate on demand. Calico accepts /20 to /32 and /116
// to /128; its default for IPv6 is /122 (https://docs.tigera.io/calico/latest/reference/installation/api#ippool).
func calicoBlock(c *manifest.Cluster, p netip.Prefix) int {
	const largest4, largest6, default6 = 20, 116, 122
	if p.Addr().Is4() {
		return max(c.CNI.IPv4MaskSize, largest4, p.Bits())
	}
	if c.CNI.IPv6MaskSize < largest6 {
		return max(default6, p.Bits())
	}
	return max(c.CNI.IPv6MaskSize, p.Bits())
}

// calicoReplaces lists the plugins that the init container install-cni puts on nodes, without regard to those that are
// there: CN_FILES of cni-plugin/Makefile (third_party/cni-plugins/Makefile from v3.33 on), which had bandwidth before
// v3.30.
func calicoReplaces(c *manifest.Cluster) []string {
	plugins := []string{"host-local", "loopback", "portmap", "tuning"}
	if before, err := calicoIsBefore(c, 30); err == nil && before {
		plugins = append(plugins, "bandwidth")
	}
	return plugins
}

// calicoDirs has the mount point of the kernel's BPF file system, which calico-node looks into with every data plane
// since v3.31. Its volume must be there (pkg/render/node.go of github.com/tigera/operator, v1.40.15 and v1.42.3).
func calicoDirs(c *manifest.Cluster) []string {
	if before, err := calicoIsBefore(c, 31); err == nil && before {
		return nil
	}
	return []string{"/sys/fs/bpf"}
}

// calicoNFTables reports whether Calico must use nftables, like kube-proxy. It supports nftables since v3.29.
func calicoNFTables(c *manifest.Cluster) (bool, error) {
	before, err := calicoIsBefore(c, 29)
	return c.Kubernetes.ProxyMode == manifest.ProxyNFTables && !before, err
}

// calicoIsBefore reports whether the cluster's Calico is older than a minor release of version 3.
func calicoIsBefore(c *manifest.Cluster, minor uint64) (bool, error) {
	version, err := catalog.Version(c, "calico")
	if err != nil {
		return false, err
	}
	v, err := semver.NewVersion(version)
	if err != nil {
		return false, fmt.Errorf("version of calico: %w", err)
	}
	return v.LessThan(semver.New(3, minor, 0, "", "")), nil
}
