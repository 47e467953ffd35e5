package addon

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

const dualStack = "kubernetes: {version: v1.34.3, podCIDR: '10.233.64.0/18,fd00:1::/48', serviceCIDR: '10.233.0.0/18,fd00:2::/112'}\n"

// at returns the value at a path with dots.
func at(values map[string]any, path string) any {
	var v any = values
	for part := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[part]
	}
	return v
}

func hostsAt(addresses ...string) []*task.Host {
	var list []*task.Host
	for _, a := range addresses {
		list = append(list, &task.Host{Host: manifest.Host{Name: "h" + a}, IP: netip.MustParseAddr(a)})
	}
	return list
}

func TestNetworkValues(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cluster string
		want    map[string]any
	}{
		"calico": {"kubernetes: {version: v1.34.3, maxPods: 60}\ncni: {type: calico, version: v3.31.3, ipv4MaskSize: 26}", map[string]any{
			"installation.registry":                                            "quay.io",
			"installation.calicoNetwork.bgp":                                   "Disabled",
			"tigeraOperator.image":                                             "tigera/operator",
			"tigeraOperator.version":                                           "v1.40.3",
			"installation.calicoNetwork.ipPools":                               []any{map[string]any{"cidr": "10.233.64.0/18", "blockSize": 26, "encapsulation": "VXLAN", "natOutgoing": "Enabled", "nodeSelector": "all()"}},
			"installation.calicoNetwork.linuxDataplane":                        "Iptables",
			"installation.calicoNetwork.nodeAddressAutodetectionV4.kubernetes": "NodeInternalIP",
			"installation.calicoNetwork.nodeAddressAutodetectionV6":            nil,
		}},
		"calico of two families": {strings.Replace(dualStack, "}", ", proxyMode: nftables}", 1) + "cni: {type: calico}", map[string]any{
			"installation.calicoNetwork.linuxDataplane":                        "Nftables",
			"installation.calicoNetwork.nodeAddressAutodetectionV6.kubernetes": "NodeInternalIP",
		}},
		"cilium": {"cni: {type: cilium, version: v1.18.9}", map[string]any{
			"image":                   map[string]any{"repository": "quay.io/cilium/cilium", "tag": "v1.18.9", "useDigest": false},
			"operator.image":          map[string]any{"repository": "quay.io/cilium/operator", "tag": "v1.18.9", "useDigest": false},
			"operator.replicas":       2,
			"hubble.ui.backend.image": map[string]any{"repository": "quay.io/cilium/hubble-ui-backend", "tag": "v0.13.3", "useDigest": false},
			"ipam.mode":               "kubernetes",
			"ipv4.enabled":            true,
			"ipv6.enabled":            false,
			"kubeProxyReplacement":    "false",
			"cni.exclusive":           true,
		}},
		"cilium below multus": {dualStack + "cni: {type: multus, with: cilium}", map[string]any{"cni.exclusive": false, "ipv6.enabled": true}},
		"hybridnet": {"cni: {type: hybridnet}", map[string]any{
			"images.registryURL":      "docker.io",
			"images.hybridnet.image":  "hybridnetdev/hybridnet",
			"init.cidr":               "10.233.64.0/18",
			"manager.replicas":        1,
			"manager.nodeSelector":    map[string]any{"node-role.kubernetes.io/control-plane": ""},
			"daemon.vtepAddressCIDRs": "10.0.0.3/32,10.0.0.4/32",
		}},
		"kube-ovn": {"cni: {type: kube-ovn}", map[string]any{
			"global.registry.address":      "docker.io/kubeovn",
			"global.images.natgateway":     map[string]any{"repository": "vpc-nat-gateway", "tag": "v1.15.0"},
			"MASTER_NODES":                 "10.0.0.3",
			"networking.NET_STACK":         "ipv4",
			"ipv4.POD_GATEWAY":             "10.233.64.1",
			"ipv4.SVC_CIDR":                "10.233.0.0/18",
			"ipv4.PINGER_EXTERNAL_ADDRESS": "",
		}},
		"kube-ovn of two families": {dualStack + "cni: {type: kube-ovn}", map[string]any{
			"networking.NET_STACK": "dual_stack", "dual_stack.POD_GATEWAY": "10.233.64.1,fd00:1::1",
		}},
	} {
		c := tasktest.Cluster(t, tc.cluster)
		nodes := hostsAt("10.0.0.3", "10.0.0.4")
		values, err := OwnCharts(c)[string(c.CNI.Primary())].values(environment{cluster: c, nodes: nodes, controlPlanes: nodes[:1]})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for path, want := range tc.want {
			if diff := cmp.Diff(at(values, path), want); diff != "" {
				t.Errorf("%s: %s (-got +want):\n%s", name, path, diff)
			}
		}
	}
}

func TestServiceValues(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "metrics: true\nstorage: {local: true, nfs: true, nfsPath: /data/k8s}")
	s := environment{cluster: c, nodes: hostsAt("10.0.0.3"), nfs: hostsAt("10.0.0.9")}
	for name, want := range map[string]map[string]any{
		metricsServer: {"image.tag": "v0.8.0", "args": []any{"--kubelet-insecure-tls"}},
		localVolumes: {
			"localpv.image.registry": "docker.io/", "helperPod.image.repository": "openebs/linux-utils", "hostpathClass.isDefaultClass": true, "analytics.enabled": false,
		},
		nfsProvisioner: {"nfs.server": "10.0.0.9", "nfs.path": "/data/k8s", "storageClass.defaultClass": false},
	} {
		values, err := OwnCharts(c)[name].values(s)
		if err != nil {
			t.Fatal(err)
		}
		for path, v := range want {
			if diff := cmp.Diff(at(values, path), v); diff != "" {
				t.Errorf("%s: %s (-got +want):\n%s", name, path, diff)
			}
		}
	}
	if !isDefault(tasktest.Cluster(t, "storage: {nfs: true}"), nfsClass) {
		t.Error("the only class is not the default")
	}
	if _, err := OwnCharts(c)[nfsProvisioner].values(environment{cluster: c, nodes: s.nodes}); err == nil {
		t.Error("there is no server, and it is installed all the same")
	}
}

// An image that the catalog does not have is named, and not left to the chart's own choice.
func TestPick(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "cni: {type: calico}")
	if _, err := pickImages(c, calico, "node", "nothing"); err == nil || !strings.Contains(err.Error(), "calico has no image called nothing") {
		t.Error(err)
	}
	c.Catalogs = []*manifest.Catalog{parseCatalog(t, `
  calico:
    default: v3.31.3
    images: [r.example/mirror/calico/node:v1, r.example/mirror/tigera/operator:v2]
`)}
	values, err := OwnCharts(c)[calico].values(environment{cluster: c})
	if err != nil || at(values, "installation.registry") != "r.example/mirror" || at(values, "tigeraOperator.image") != "mirror/tigera/operator" {
		t.Errorf("%v %v", values, err)
	}
}

func parseCatalog(t *testing.T, components string) *manifest.Catalog {
	t.Helper()
	c, err := manifest.ParseCatalog("catalog.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Catalog\ncomponents:"+components))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
