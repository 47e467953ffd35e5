package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
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

func nodesAt(addresses ...string) []Node {
	var list []Node
	for _, a := range addresses {
		list = append(list, Node{Name: "h" + a, IP: netip.MustParseAddr(a)})
	}
	return list
}

func TestFlannelValues(t *testing.T) {
	t.Parallel()
	nodes := nodesAt("10.0.0.3", "10.0.0.4")
	values, err := flannelValues(Site{Cluster: tasktest.Cluster(t, ""), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	got, err := kube.Documents(values)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "flannel-values.yaml", got)
}

// haproxy's health has port 8081 of each worker's loopback; flannel from v0.28.10 on would bind the same port of all
// addresses, and end.
func TestFlannelLeavesHAProxyItsPort(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]any{
		"":                                      nil,
		"controlPlaneEndpoint: {type: haproxy}": map[string]any{"port": 0},
	} {
		values, err := flannelValues(Site{Cluster: tasktest.Cluster(t, endpoint)})
		if err != nil {
			t.Fatal(err)
		}
		flannel, _ := values["flannel"].(map[string]any)
		if diff := cmp.Diff(want, flannel["healthz"]); diff != "" {
			t.Errorf("%q (-want +got):\n%s", endpoint, diff)
		}
	}
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
			"tigeraOperator":                                                   nil, // the chart's own
			"installation.calicoNetwork.ipPools":                               []any{map[string]any{"cidr": "10.233.64.0/18", "blockSize": 26, "encapsulation": "VXLAN", "natOutgoing": "Enabled", "nodeSelector": "all()"}},
			"installation.calicoNetwork.linuxDataplane":                        "Iptables",
			"installation.calicoNetwork.nodeAddressAutodetectionV4.kubernetes": "NodeInternalIP",
			"installation.calicoNetwork.nodeAddressAutodetectionV6":            nil,
		}},
		"calico of two families": {
			strings.Replace(dualStack, "}", ", proxyMode: nftables}", 1) + "cni: {type: calico}",
			map[string]any{
				"installation.calicoNetwork.linuxDataplane":                        "Nftables",
				"installation.calicoNetwork.nodeAddressAutodetectionV6.kubernetes": "NodeInternalIP",
			},
		},
		"cilium": {"cni: {type: cilium, version: v1.18.9}", map[string]any{
			"image": map[string]any{
				"repository": "quay.io/cilium/cilium", "tag": "v1.18.9",
				"useDigest": false,
			},
			"operator.image": map[string]any{
				"repository": "quay.io/cilium/operator", "tag": "v1.18.9",
				"useDigest": false,
			},
			"operator.replicas": 2,
			"hubble.relay.image": map[string]any{
				"repository": "quay.io/cilium/hubble-relay", "tag": "v1.18.9",
				"useDigest": false,
			},
			"hubble.ui.backend.image": map[string]any{"useDigest": false}, // name and tag are the chart's own
			"envoy.image":             map[string]any{"useDigest": false},
			"ipam.mode":               "kubernetes",
			"ipv4.enabled":            true,
			"ipv6.enabled":            false,
			"kubeProxyReplacement":    "false",
			"cni.exclusive":           true,
		}},
		"cilium below multus": {
			dualStack + "cni: {type: multus, with: cilium}",
			map[string]any{"cni.exclusive": false, "ipv6.enabled": true},
		},
		"hybridnet": {"cni: {type: hybridnet}", map[string]any{
			"images.registryURL":      "docker.io",
			"images.hybridnet.image":  "hybridnetdev/hybridnet",
			"init.cidr":               "10.233.64.0/18",
			"manager.replicas":        1,
			"manager.nodeSelector":    map[string]any{"node-role.kubernetes.io/control-plane": ""},
			"daemon.vtepAddressCIDRs": "10.0.0.3/32,10.0.0.4/32",
			// Its Felix asks for a version of EndpointSlices that Kubernetes has no more, and would wait for ever.
			"daemon.enableFelixPolicy": false,
		}},
		"hybridnet with Kubernetes 1.24": {"kubernetes: {version: v1.24.17}\ncni: {type: hybridnet}", map[string]any{
			"daemon.enableFelixPolicy": true,
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
		nodes := nodesAt("10.0.0.3", "10.0.0.4")
		values, err := All().Primary(c).Chart.Values(Site{Cluster: c, Nodes: nodes, ControlPlanes: nodes[:1]})
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

// The chart of kube-ovn v1.15 fails without an address of a control plane, and a build knows none.
func TestKubeOVNValuesOfABuild(t *testing.T) {
	t.Parallel()
	values, err := kubeOVNValues(Site{Cluster: tasktest.Cluster(t, "cni: {type: kube-ovn}")})
	if err != nil || values["MASTER_NODES"] == "" {
		t.Errorf("MASTER_NODES is %q: %v", values["MASTER_NODES"], err)
	}
}

// An image that the catalog does not have is named, and not left to the chart's own choice.
func TestPick(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "cni: {type: calico}")
	if _, err := catalog.PickImages(c, "calico", "node", "nothing"); err == nil ||
		!strings.Contains(err.Error(), "calico has no image called nothing") {
		t.Error(err)
	}
	c.Catalogs = []*catalogfile.Catalog{parseCatalog(t, `
  calico:
    default: v3.31.3
    images: [r.example/mirror/calico/node:v1, r.example/mirror/tigera/operator:v2]
`)}
	values, err := calicoValues(Site{Cluster: c})
	if err != nil || at(values, "installation.registry") != "r.example/mirror" ||
		at(values, "tigeraOperator.image") != "mirror/tigera/operator" {
		t.Errorf("%v %v", values, err)
	}
}

// TestTagsOfCatalogs: where a catalog lists the tag of an image, as those of earlier bundles do, it counts over the
// chart's.
func TestTagsOfCatalogs(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "cni: {type: cilium, version: v1.18.9}")
	c.Catalogs = []*catalogfile.Catalog{parseCatalog(t, `
  cilium:
    default: v1.18.9
    images: ["r.example/cilium:{version}", "r.example/operator-generic:{version}", {name: "r.example/cilium-envoy:{tag}", tags: {v1.18.9: v7}}]
  hubble:
    follows: cilium
    images: ["r.example/hubble-relay:{version}", {name: "r.example/certgen:{tag}", tags: {v1.18.9: v8}}]
`)}
	values, err := ciliumValues(Site{Cluster: c})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"envoy.image.tag": "v7", "certgen.image.tag": "v8",
		"hubble.relay.image.repository": "r.example/hubble-relay",
	} {
		if got := at(values, path); got != want {
			t.Errorf("%s is %v, want %s", path, got, want)
		}
	}
}

func parseCatalog(t *testing.T, components string) *catalogfile.Catalog {
	t.Helper()
	c, err := manifest.ParseCatalog("catalog.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Catalog\ncomponents:"+
		components))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
