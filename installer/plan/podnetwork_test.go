package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// What a build is told of charts is what install uses: the same function makes it, and hosts decide nothing about
// images.
func TestChartUses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"cni: {type: calico, values: [net.yaml]}", "cni: {type: cilium, values: [net.yaml]}",
		"cni: {type: kube-ovn, values: [net.yaml]}",
		"cni: {type: hybridnet, values: [net.yaml]}", "cni: {values: [net.yaml]}",
		"cni: {type: multus, with: cilium, values: [net.yaml]}",
	} {
		c := tasktest.Cluster(t, text+
			"\nmetrics: true\nimageDistribution: {peers: spegel}\nstorage: {local: true, nfs: true}\naddons: [{chart: demo}, {release: a, manifests: [b.yaml]}]")
		uses, err := ChartUses(c)
		want, networks := 6, 1
		if strings.Contains(text, "cilium") { // with hubble, too
			want, networks = 7, 2
		}
		if err != nil || len(uses) != want {
			t.Fatalf("%s: %v, %v", text, uses, err)
		}
		withValues := 0
		for _, use := range uses {
			if len(use.Values) == 1 && use.Values[0] == "net.yaml" && use.Set != nil {
				withValues++
			}
		}
		if withValues != networks {
			t.Errorf("%s: the network's values are used %d times", text, withValues)
		}
	}
}

// The cache and multus run the image of the catalog, in the order that they are applied in; kubelets are told of the
// cache where it does not take the address of the cluster's DNS.
func TestOwnManifests(t *testing.T) {
	t.Parallel()
	for mode, listens := range map[string]string{"iptables": "169.254.25.10,10.233.0.10", "nftables": "169.254.25.10"} {
		c := tasktest.Cluster(t, "kubernetes: {version: v1.34.3, proxyMode: "+mode+"}\ndns: {nodeLocal: true}")
		data, err := addon.NodeDNSManifest(c, mode == "iptables")
		if err != nil {
			t.Fatal(err)
		}
		ref, err := catalog.ImageRef(c, addon.NodeDNS)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, want := range []string{"- " + listens + "\n", "image: " + ref + "\n", "bind " +
			strings.ReplaceAll(listens, ",", " ") + "\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", mode, want, text)
			}
		}
		if strings.Contains(text, "UPSTREAM__SERVERS") != (mode == "iptables") {
			t.Errorf("%s: names outside:\n%s", mode, text)
		}
		if n := strings.Count(text, "CLUSTER__DNS"); mode == "nftables" && n != 4 {
			t.Errorf("%s: the cache asks CoreDNS for %d zones, not for names outside, too:\n%s", mode, n, text)
		}
		if told := kubeadm.NodeDNSPart(c).Kubelet != nil; told != (mode == "nftables") {
			t.Errorf("%s: kubelets are told: %v", mode, told)
		}
		kinds(t, data, "ServiceAccount", "Service", "ConfigMap", "DaemonSet")
		tasktest.Golden(t, "node-dns-"+mode+".yaml", data) // clusters keep the digest: other bytes are applied anew
	}
	c := tasktest.Cluster(t, "cni: {type: multus, with: flannel}")
	data, err := network.All().Find(manifest.NetworkMultus).Manifest(c)
	if err != nil || !strings.Contains(string(data), "image: ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.4\n") {
		t.Errorf("%v\n%s", err, data)
	}
	kinds(t, data, "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet")
	tasktest.Golden(t, "multus.yaml", data)
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

// Plugins that a network's pods replace by builds of their own are not the bundle's: each installation would find them
// changed, put them back and start the container runtime again. Reset removes them all the same.
func TestNetworkReplacesPlugins(t *testing.T) {
	t.Parallel()
	const k3s = "kubernetes: {version: v1.34.3+k3s1, distribution: k3s}\n"
	for text, replaced := range map[string][]string{
		"cni: {type: flannel}": nil, "cni: {type: cilium}": nil,
		"cni: {type: calico, version: v3.31.3}":              {"host-local", "loopback", "portmap", "tuning"},
		"cni: {type: calico, version: v3.29.7}":              {"host-local", "loopback", "portmap", "tuning", "bandwidth"},
		"cni: {type: multus, with: calico, version: v4.2.4}": {"host-local", "loopback", "portmap", "tuning"},
		"cni: {type: kube-ovn}":                              {"loopback", "macvlan", "portmap"},
		"cni: {type: hybridnet}":                             {"loopback", "bandwidth"},
		k3s + "cni: {type: calico}":                          {"host-local", "loopback", "portmap", "tuning"},
	} {
		placed, removed := map[string]bool{}, map[string]bool{}
		for _, phase := range Plan(tasktest.Cluster(t, text)) {
			for _, one := range phase.Tasks {
				for _, f := range one.Files {
					placed[f.Path] = true
				}
				for _, path := range one.Leaves.Paths {
					removed[path] = true
				}
			}
		}
		for _, name := range []string{"bandwidth", "bridge", "host-local", "loopback", "macvlan", "portmap", "tuning"} {
			path, own := "/opt/cni/bin/"+name, !slices.Contains(replaced, name)
			if placed[path] != own || removed[path] == own {
				t.Errorf("%s: %s is placed: %t, removed: %t", text, path, placed[path], removed[path])
			}
		}
	}
}
