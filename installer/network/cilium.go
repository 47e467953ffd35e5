package network

import (
	_ "embed"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

//go:embed scripts/remove-cilium.sh
var removeCilium string

func cilium() Network {
	const rhel86, rhel810 = 372, 553 // builds of 4.18
	return Network{
		Name: manifest.NetworkCilium, Title: "Cilium", NodeShares: true, Enforces: true,
		Images: []string{"cilium", "hubble"},
		Chart: &Chart{
			Everywhere: true, Values: ciliumValues,
			Options: map[string]any{"hubble": map[string]any{
				"enabled": true, "relay": map[string]any{"enabled": true}, "ui": map[string]any{"enabled": true},
				"tls": map[string]any{"auto": map[string]any{"enabled": true, "method": "cronJob"}},
			}},
		},
		Ports: []Port{
			{Protocol: "udp", Number: 8472, For: "VXLAN", Caller: PeersCall},
			{Protocol: "tcp", Number: 4240, For: "health", Caller: PeersCall},
			{Protocol: "tcp", Number: 4244, For: "Hubble"},
		},
		Listeners: []string{"cilium-agent"},
		Interfaces: []Interface{
			{"cilium*", 0},
			{"lxc*", Carries}, // LXC's bridge is lxcbr0
			{"cilium_*", Telling},
			{"lxc_*", Telling},
			{"cilium_host", Carries | Stays},
			{"cilium_net", Carries}, // the peer of cilium_host
			{"cilium_vxlan", Carries | Stays},
			{"cilium_geneve", Stays},
			{"cilium_wg0", Stays},
		},
		Modules: []string{"vxlan"},
		// It names the 4.18 of RHEL 8.6 and its rebuilds as equivalent to 5.4, that of RHEL 8.10 to 5.10, and no 4.19
		// of another distribution: https://docs.cilium.io/en/stable/operations/system_requirements/
		Kernels: []Kernel{
			{Before: []int{1, 16}, Least: "4.9.17", RHEL8: rhel810},
			{Before: []int{1, 18}, Least: "5.4", RHEL8: rhel86},
			{Least: "5.10", RHEL8: rhel810},
		},
		KernelSource: "Kubespray (cilium 4.9.17); Cilium's system requirements (5.4 or RHEL 8.6 since 1.16, 5.10 or RHEL 8.10 since 1.18)",
		Agents:       []string{"cilium"},
		Configs:      []string{"05-cilium.conflist"},
		Rules:        []string{"CILIUM_", "OLD_CILIUM_"},
		Leaves: Leaves{
			// Its init container cilium-sysctlfix writes the file, which switches reverse path filters off at every
			// boot.
			Paths: []string{
				"/var/run/cilium", "/var/lib/cilium", "/opt/cni/bin/cilium-cni",
				"/etc/sysctl.d/99-zzz-override_cilium.conf",
			},
			// Pins in the BPF file system that others share, a mount of control groups, rules and tables of routes.
			Mounts: []string{"/run/cilium/", "/var/run/cilium/"},
			Script: Script{Name: "remove-cilium.sh", Text: removeCilium},
		},
	}
}

// ciliumValues leaves services to kube-proxy. Nodes use the pod CIDR that Kubernetes assigns, as with flannel, so
// cni.ipv4MaskSize and ipv6MaskSize apply.
func ciliumValues(s Site) (map[string]any, error) {
	c := s.Cluster
	images, err := catalog.PickImages(c, "cilium", "cilium", "operator-generic")
	if err != nil {
		return nil, err
	}
	known, err := catalog.ImagesOf(c, "cilium")
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
	// the chart appends the suffix
	operator := byTag(catalog.ImageName{Full: strings.TrimSuffix(images[1].Full, "-generic"), Tag: images[1].Tag})
	operator["replicas"] = 1
	if len(s.Nodes) > 1 {
		operator["replicas"] = 2 // one per node
	}
	has := func(is func(netip.Prefix) bool) bool { return slices.ContainsFunc(c.Kubernetes.PodCIDR, is) }
	four, six := has(func(p netip.Prefix) bool { return p.Addr().Is4() }),
		has(func(p netip.Prefix) bool { return p.Addr().Is6() })
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
		"cni": map[string]any{"exclusive": c.CNI.Type != manifest.NetworkMultus},
		"hubble": map[string]any{
			"relay": named("hubble-relay"),
			"ui":    map[string]any{"frontend": named("hubble-ui"), "backend": named("hubble-ui-backend")},
		},
	}
	values["image"] = byTag(images[0])["image"]
	return values, nil
}
