package addon

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Names of pod networks in cni.type and the catalog.
const (
	flannel   = "flannel"
	calico    = "calico"
	cilium    = "cilium"
	hybridnet = "hybridnet"
	kubeOVN   = "kube-ovn"
	Multus    = "multus"
)

// NetworkTasks installs the pod network, unless the distribution includes one.
func NetworkTasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	if o, ok := OwnCharts(c)[string(c.CNI.Primary())]; ok && !c.BringsNetwork() {
		n := NetworkOf(c)
		t := o.task(n.images...)
		t.Files, t.Leaves = n.files, n.leaves
		if c.CNI.Primary() == manifest.NetworkCalico && hasDefinitions(c) {
			tasks = append(tasks, definitionsTask())
		}
		tasks = append(tasks, t)
	}
	if c.CNI.Type == manifest.NetworkMultus {
		tasks = append(tasks, multusTask())
	}
	return tasks
}

func flannelNetwork() podNetwork {
	return podNetwork{images: []string{"flannel", "flannel-cni-plugin"}, Patterns: []string{"cni0", "flannel*", "veth*"}}
}

func flannelChart(c *manifest.Cluster) OwnChart {
	return OwnChart{
		component: flannel, Namespace: "kube-flannel", privileged: true, everywhere: true, files: c.CNI.Values,
		values: func(s environment) (map[string]any, error) { return flannelValues(s.cluster, s.nodes) },
		after:  recreateDNSPods,
	}
}

// recreateDNSPods deletes pending CoreDNS pods. A node becomes ready with flannel's configuration, a moment before
// flannel knows the node's addresses. Pods started in between fail, and the kubelet retries after 10 to 15 seconds
// (backOffPeriod of https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/kubelet/kubelet.go).
func recreateDNSPods(ctx context.Context, t *task.Host) error {
	_, err := t.Kubectl(ctx, "delete", "pods", "--namespace="+kube.SystemNamespace, dnsSelector, "--field-selector=status.phase=Pending", "--wait=false")
	return err
}

// Namespaces of Calico's operator (https://docs.tigera.io/calico/latest/reference/installation/api).
const (
	calicoNamespace   = "calico-system"
	operatorNamespace = "tigera-operator"
)

// calicoWait limits the wait for Calico's operator to install the network.
const calicoWait = 5 * time.Minute

func calicoNetwork() podNetwork {
	links := []string{"vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali"}
	return podNetwork{
		images:     []string{calico},
		files:      []task.Place{{Component: "calicoctl", Member: "", Path: "/usr/local/bin/calicoctl", Mode: task.Executable}},
		namespaces: []string{calicoNamespace},
		Patterns:   append([]string{"cali*", "tunl*"}, links...),
		leaves: task.Leaves{
			Links: links,
			Paths: []string{"/var/lib/calico", "/var/run/calico", "/var/log/calico", "/opt/cni/bin/calico", "/opt/cni/bin/calico-ipam", "/etc/calico"},
			Undo:  machine.UndoAll(machine.DropTables("calico"), machine.DropSets("cali")),
		},
		enforces: true,
	}
}

func calicoChart(c *manifest.Cluster) OwnChart {
	return OwnChart{
		component: calico, chart: "tigera-operator", Namespace: operatorNamespace, privileged: true, files: c.CNI.Values, values: calicoValues,
		after: func(ctx context.Context, t *task.Host) error {
			// The chart is ready when the operator runs; the network is ready when its status is Available.
			return task.Eventually(ctx, calicoWait, func(ctx context.Context) error {
				_, err := t.Kubectl(ctx, "wait", "--for=condition=Available", "--timeout=5s", "tigerastatus/calico")
				return err
			})
		},
	}
}

// calicoValues selects VXLAN between all nodes and no BGP: that works on any network, and needs one UDP port. Nodes are
// identified by their Kubernetes addresses, because a default route may be missing.
func calicoValues(s environment) (map[string]any, error) {
	images, err := catalog.PickImages(s.cluster, calico, "node")
	if err != nil {
		return nil, err
	}
	node := images[0]
	network := map[string]any{"bgp": "Disabled", "linuxDataplane": "Iptables"}
	var pools []any
	for _, p := range s.cluster.Kubernetes.PodCIDR {
		pools = append(pools, map[string]any{
			"cidr": p.String(), "blockSize": calicoBlock(s.cluster, p), "encapsulation": "VXLAN", "natOutgoing": "Enabled", "nodeSelector": "all()",
		})
		family := "nodeAddressAutodetectionV4"
		if p.Addr().Is6() {
			family = "nodeAddressAutodetectionV6"
		}
		network[family] = map[string]any{"kubernetes": "NodeInternalIP"}
	}
	network["ipPools"] = pools
	if nft, err := calicoNFTables(s.cluster); err != nil {
		return nil, err
	} else if nft {
		network["linuxDataplane"] = "Nftables"
	}
	values := map[string]any{
		// The operator pulls the images of its pods from this registry, as calico/….
		"installation": map[string]any{"registry": strings.TrimSuffix(node.Full, "/calico/node"), "calicoNetwork": network},
		// Flow logs and their web page are off by default; the bundle has their images.
		"goldmane": map[string]any{"enabled": false},
		"whisker":  map[string]any{"enabled": false},
	}
	// The chart names the operator's own image, unless a catalog does.
	all, err := catalog.ImagesOf(s.cluster, calico)
	if operator, ok := all["operator"]; ok {
		values["tigeraOperator"] = map[string]any{"registry": operator.Registry, "image": operator.Repository, "version": operator.Tag}
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

// calicoNFTables reports whether Calico must use nftables, like kube-proxy. It supports nftables since v3.29.
func calicoNFTables(c *manifest.Cluster) (bool, error) {
	version, err := catalog.Version(c, calico)
	if err != nil {
		return false, err
	}
	v, err := semver.NewVersion(version)
	if err != nil {
		return false, fmt.Errorf("version of calico: %w", err)
	}
	return c.Kubernetes.ProxyMode == manifest.ProxyNFTables && !v.LessThan(semver.New(3, 29, 0, "", "")), nil
}

func ciliumNetwork() podNetwork {
	return podNetwork{
		images:   []string{cilium, "hubble"},
		Patterns: []string{"cilium*", "lxc*"},
		leaves: task.Leaves{
			Links: []string{"cilium_host", "cilium_vxlan", "cilium_geneve", "cilium_wg0"}, // cilium_net is the peer
			// Its init container cilium-sysctlfix writes the file, which switches reverse path filters off at every boot.
			Paths: []string{"/var/run/cilium", "/var/lib/cilium", "/opt/cni/bin/cilium-cni", "/etc/sysctl.d/99-zzz-override_cilium.conf"},
			Undo:  machine.RemoveCilium,
		},
		enforces: true,
	}
}

func ciliumChart(c *manifest.Cluster) OwnChart {
	return OwnChart{
		component: cilium, privileged: true, everywhere: true, files: c.CNI.Values, values: ciliumValues,
		options: map[string]any{"hubble": map[string]any{
			"enabled": true, "relay": map[string]any{"enabled": true}, "ui": map[string]any{"enabled": true},
			"tls": map[string]any{"auto": map[string]any{"enabled": true, "method": "cronJob"}},
		}},
	}
}

// ciliumValues leaves services to kube-proxy. Nodes use the pod CIDR that Kubernetes assigns, as with flannel, so
// cni.ipv4MaskSize and ipv6MaskSize apply.
func ciliumValues(s environment) (map[string]any, error) {
	c := s.cluster
	images, err := catalog.PickImages(c, cilium, "cilium", "operator-generic")
	if err != nil {
		return nil, err
	}
	known, err := catalog.ImagesOf(c, cilium)
	if err != nil {
		return nil, err
	}
	extra, err := catalog.ImagesOf(c, "hubble")
	if err != nil {
		return nil, err
	}
	maps.Copy(known, extra)
	byTag := func(i catalog.ImageName) map[string]any {
		v := i.Value()
		v["useDigest"] = false // the chart's digests belong to its own tags
		return map[string]any{"image": v}
	}
	// An image that the catalog does not list has the name and tag of the chart.
	named := func(name string) map[string]any {
		if i, ok := known[name]; ok {
			return byTag(i)
		}
		return map[string]any{"image": map[string]any{"useDigest": false}}
	}
	operator := byTag(catalog.ImageName{Full: strings.TrimSuffix(images[1].Full, "-generic"), Tag: images[1].Tag}) // the chart appends the suffix
	operator["replicas"] = 1
	if len(s.nodes) > 1 {
		operator["replicas"] = 2 // one per node
	}
	has := func(is func(netip.Prefix) bool) bool { return slices.ContainsFunc(c.Kubernetes.PodCIDR, is) }
	four, six := has(func(p netip.Prefix) bool { return p.Addr().Is4() }), has(func(p netip.Prefix) bool { return p.Addr().Is6() })
	values := map[string]any{
		"operator":             operator,
		"envoy":                named("cilium-envoy"),
		"certgen":              named("certgen"),
		"ipam":                 map[string]any{"mode": "kubernetes"},
		"k8s":                  map[string]any{"requireIPv4PodCIDR": four, "requireIPv6PodCIDR": six},
		"ipv4":                 map[string]any{"enabled": four},
		"ipv6":                 map[string]any{"enabled": six},
		"kubeProxyReplacement": "false",
		// With multus, multus's configuration must stay beside Cilium's.
		"cni": map[string]any{"exclusive": c.CNI.Type != Multus},
		"hubble": map[string]any{
			"relay": named("hubble-relay"),
			"ui":    map[string]any{"frontend": named("hubble-ui"), "backend": named("hubble-ui-backend")},
		},
	}
	values["image"] = byTag(images[0])["image"]
	return values, nil
}

func hybridnetNetwork() podNetwork {
	return podNetwork{
		images:   []string{hybridnet},
		Patterns: []string{"*.vxlan*", "h_*"},
		leaves: task.Leaves{
			Paths: []string{"/var/run/hybridnet", "/opt/cni/bin/hybridnet"},
			Undo:  machine.UndoAll(machine.DropSets("hybr"), machine.DropSets("cali")),
		},
		enforces: true,
	}
}

func hybridnetChart(c *manifest.Cluster) OwnChart {
	return OwnChart{component: hybridnet, privileged: true, everywhere: true, files: c.CNI.Values, values: hybridnetValues}
}

// hybridnetValues names the nodes' addresses, from which the daemon finds its interface. Without a default route it
// also needs cni.values with daemon.preferVxlanInterfaces.
func hybridnetValues(s environment) (map[string]any, error) {
	images, err := catalog.ImagesOf(s.cluster, hybridnet)
	if err != nil {
		return nil, err
	}
	pods := s.cluster.Kubernetes.PodCIDR[0]
	version, family := "4", "IPv4"
	if pods.Addr().Is6() {
		version, family = "6", "IPv6"
	}
	// Replicas run on separate nodes. The chart's default is a label that control planes lack since 1.24.
	pods3 := map[string]any{"replicas": min(max(len(s.controlPlanes), 1), 3), "nodeSelector": map[string]any{controlPlaneLabel: ""}}
	values := map[string]any{
		"init":            map[string]any{"cidr": pods.String(), "ipVersion": version},
		"defaultIPFamily": family,
		"manager":         pods3, "webhook": pods3, "typha": pods3,
	}
	if own, ok := images["hybridnet"]; ok { // else the chart's own
		values["images"] = map[string]any{"registryURL": own.Registry, "hybridnet": map[string]any{"image": own.Repository, "tag": own.Tag}}
	}
	var addresses []string
	for _, t := range s.nodes {
		addresses = append(addresses, netip.PrefixFrom(t.IP, t.IP.BitLen()).String())
	}
	if len(addresses) > 0 {
		values["daemon"] = map[string]any{"vtepAddressCIDRs": strings.Join(addresses, ",")}
	}
	return values, nil
}

const (
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// ovnLabel marks the nodes of kube-ovn's databases
	// (https://kubeovn.github.io/docs/stable/en/start/one-step-install/).
	ovnLabel = "kube-ovn/role"
)

func kubeOVNNetwork() podNetwork {
	return podNetwork{
		images:   []string{kubeOVN},
		Patterns: []string{"ovn0", "ovs-system", "br-int", "genev_sys_*", "vxlan_sys_*", "mirror0", "*_h"},
		leaves: task.Leaves{
			Links: []string{"ovn0", "ovs-system", "br-int", "genev_sys_6081", "vxlan_sys_4789", "mirror0"},
			Paths: []string{
				"/var/run/openvswitch", "/var/run/ovn", "/etc/openvswitch", "/var/log/openvswitch", "/var/log/ovn", "/var/log/kube-ovn",
				"/etc/origin/openvswitch", "/etc/origin/ovn", "/etc/origin/ovs_ipsec_keys", "/opt/cni/bin/kube-ovn",
			},
			Undo: machine.DropSets("ovn"),
		},
		enforces: true,
	}
}

func kubeOVNChart(c *manifest.Cluster) OwnChart {
	return OwnChart{
		component: kubeOVN, privileged: true, everywhere: true, files: c.CNI.Values, values: kubeOVNValues,
		before: func(ctx context.Context, t *task.Host) error {
			for _, node := range t.Site.WithRole(manifest.RoleControlPlane) {
				if _, err := t.Kubectl(ctx, "label", "node", node.Name, "--overwrite", ovnLabel+"=master"); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// kubeOVNValues names no interface: kube-ovn uses that of each node's address. Its pinger tests no external address.
func kubeOVNValues(s environment) (map[string]any, error) {
	images, err := catalog.PickImages(s.cluster, kubeOVN, "kube-ovn", "vpc-nat-gateway")
	if err != nil {
		return nil, err
	}
	k := s.cluster.Kubernetes
	stack := "ipv4"
	switch {
	case len(k.PodCIDR) > 1:
		stack = "dual_stack"
	case k.PodCIDR[0].Addr().Is6():
		stack = "ipv6"
	}
	var gateways, masters []string
	for _, p := range k.PodCIDR {
		gateways = append(gateways, task.NthAddress(p, 1).String())
	}
	for _, t := range s.controlPlanes {
		masters = append(masters, t.IP.String())
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
			"POD_CIDR": k.PodCIDR.String(), "POD_GATEWAY": strings.Join(gateways, ","), "SVC_CIDR": k.ServiceCIDR.String(),
			"PINGER_EXTERNAL_ADDRESS": "", "PINGER_EXTERNAL_DOMAIN": "",
		},
	}, nil
}

// NetworkOf returns the primary pod network.
func NetworkOf(c *manifest.Cluster) podNetwork {
	switch c.CNI.Primary() {
	case manifest.NetworkCalico:
		return calicoNetwork()
	case manifest.NetworkCilium:
		return ciliumNetwork()
	case manifest.NetworkHybridnet:
		return hybridnetNetwork()
	case manifest.NetworkKubeOVN:
		return kubeOVNNetwork()
	case manifest.NetworkNone:
		return podNetwork{}
	default:
		return flannelNetwork()
	}
}

// A podNetwork is a primary pod network.
type podNetwork struct {
	// images are those outside its chart's values.
	images []string
	// files are placed on control planes.
	files []task.Place
	// namespaces are those of its pods, besides the chart's.
	namespaces []string
	// Patterns match its interfaces on hosts.
	Patterns []string
	// leaves lists its pods' remains on hosts. Its packet filter chains are removed with those of Kubernetes.
	leaves task.Leaves
	// enforces means that it enforces NetworkPolicies.
	enforces bool
}
