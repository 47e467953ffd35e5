package installer

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const dualStack = "kubernetes: {version: v1.34.3, podCIDR: '10.233.64.0/18,fd00:1::/48', serviceCIDR: '10.233.0.0/18,fd00:2::/112'}\n"

// at returns what is in values at a path with dots.
func at(values map[string]any, path string) any {
	var v any = values
	for part := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[part]
	}
	return v
}

func hostsAt(addresses ...string) []*Target {
	var list []*Target
	for _, a := range addresses {
		list = append(list, &Target{Host: manifest.Host{Name: "h" + a}, IP: netip.MustParseAddr(a)})
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
		c := cluster(t, tc.cluster)
		nodes := hostsAt("10.0.0.3", "10.0.0.4")
		values, err := ownCharts(c)[string(c.CNI.Primary())].values(surroundings{cluster: c, nodes: nodes, controlPlanes: nodes[:1]})
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
	c := cluster(t, "metrics: true\nstorage: {local: true, nfs: true, nfsPath: /data/k8s}")
	s := surroundings{cluster: c, nodes: hostsAt("10.0.0.3"), nfs: hostsAt("10.0.0.9")}
	for name, want := range map[string]map[string]any{
		metricsServer: {"image.tag": "v0.8.0", "args": []any{"--kubelet-insecure-tls"}},
		localVolumes: {
			"localpv.image.registry": "docker.io/", "helperPod.image.repository": "openebs/linux-utils", "hostpathClass.isDefaultClass": true, "analytics.enabled": false,
		},
		nfsProvisioner: {"nfs.server": "10.0.0.9", "nfs.path": "/data/k8s", "storageClass.defaultClass": false},
	} {
		values, err := ownCharts(c)[name].values(s)
		if err != nil {
			t.Fatal(err)
		}
		for path, v := range want {
			if diff := cmp.Diff(at(values, path), v); diff != "" {
				t.Errorf("%s: %s (-got +want):\n%s", name, path, diff)
			}
		}
	}
	if !isDefault(cluster(t, "storage: {nfs: true}"), nfsClass) {
		t.Error("the only class is not the default")
	}
	if _, err := ownCharts(c)[nfsProvisioner].values(surroundings{cluster: c, nodes: s.nodes}); err == nil {
		t.Error("there is no server, and it is installed all the same")
	}
}

// What a build is told of charts is what install uses: the same function makes it, and hosts decide nothing about images.
func TestChartUses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"cni: {type: calico, values: [net.yaml]}", "cni: {type: cilium, values: [net.yaml]}", "cni: {type: kube-ovn, values: [net.yaml]}",
		"cni: {type: hybridnet, values: [net.yaml]}", "cni: {values: [net.yaml]}", "cni: {type: multus, with: cilium, values: [net.yaml]}",
	} {
		c := cluster(t, text+"\nmetrics: true\nstorage: {local: true, nfs: true}\naddons: [{chart: demo}, {release: a, manifests: [b.yaml]}]")
		uses, err := ChartUses(c)
		if err != nil || len(uses) != 5 {
			t.Fatalf("%s: %v, %v", text, uses, err)
		}
		withValues := 0
		for _, use := range uses {
			if len(use.Values) == 1 && use.Values[0] == "net.yaml" && use.Set != nil {
				withValues++
			}
		}
		if withValues != 1 {
			t.Errorf("%s: the network's values are used %d times", text, withValues)
		}
	}
}

// An image that the catalog does not have is named, and not left to the chart's own choice.
func TestPick(t *testing.T) {
	t.Parallel()
	c := cluster(t, "cni: {type: calico}")
	if _, err := pick(c, calico, "node", "nothing"); err == nil || !strings.Contains(err.Error(), "calico has no image called nothing") {
		t.Error(err)
	}
	c.Catalogs = []*manifest.Catalog{parseCatalog(t, `
  calico:
    default: v3.31.3
    images: [r.example/mirror/calico/node:v1, r.example/mirror/tigera/operator:v2]
`)}
	values, err := ownCharts(c)[calico].values(surroundings{cluster: c})
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

// The cache and multus run the image of the catalog, in the order that they are applied in; kubelets are told of the cache where it
// does not take the address of the cluster's DNS.
func TestOwnManifests(t *testing.T) {
	t.Parallel()
	for mode, listens := range map[string]string{"iptables": "169.254.25.10,10.233.0.10", "nftables": "169.254.25.10"} {
		c := cluster(t, "kubernetes: {version: v1.34.3, proxyMode: "+mode+"}\ndns: {nodeLocal: true}")
		data, err := nodeDNSManifest(c, mode == "iptables")
		if err != nil {
			t.Fatal(err)
		}
		ref, err := catalog.ImageRef(c, nodeDNS)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, want := range []string{"- " + listens + "\n", "image: " + ref + "\n", "bind " + strings.ReplaceAll(listens, ",", " ") + "\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", mode, want, text)
			}
		}
		if strings.Contains(text, "UPSTREAM__SERVERS") != (mode == "iptables") {
			t.Errorf("%s: names outside:\n%s", mode, text)
		}
		if told := nodeDNSPart(c).kubelet != nil; told != (mode == "nftables") {
			t.Errorf("%s: kubelets are told: %v", mode, told)
		}
		kinds(t, data, "ServiceAccount", "Service", "ConfigMap", "DaemonSet")
		golden(t, "node-dns-"+mode+".yaml", data) // clusters keep the digest: other bytes are applied anew
	}
	c := cluster(t, "cni: {type: multus, with: flannel}")
	data, err := multusManifest(c)
	if err != nil || !strings.Contains(string(data), "image: ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.4\n") {
		t.Errorf("%v\n%s", err, data)
	}
	kinds(t, data, "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet")
	golden(t, "multus.yaml", data)
}

func kinds(t *testing.T, data []byte, want ...string) {
	t.Helper()
	objects, err := kube.ParseManifest(data)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.GetKind())
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
