package kubekey_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// TestSettingsWithAPlace wants settings of the kubelet and kube-proxy that kkbundle decides at their places, or in a
// note, and the file accepted.
func TestSettingsWithAPlace(t *testing.T) {
	t.Parallel()
	const file = `apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
metadata: {name: a}
spec:
  hosts: [{name: n1, address: 10.0.0.1, internalAddress: 10.0.0.1, user: root, privateKeyPath: ~/.ssh/id}]
  roleGroups: {etcd: [n1], control-plane: [n1], worker: [n1]}
  kubernetes:
    version: v1.34.3
    kubeletConfiguration: {cgroupDriver: systemd, maxPods: 150, clusterDNS: [10.9.9.9], evictionHard: {memory.available: 5%}}
    kubeProxyConfiguration: {mode: ipvs, ipvs: {strictARP: true}}
`
	c, notes, err := kubekey.ReadCluster("kk.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	k := c.Kubernetes
	if k.MaxPods != 150 || k.ProxyMode != "ipvs" || k.Kubelet["maxPods"] != nil || k.Kubelet["evictionHard"] == nil ||
		k.KubeProxy["mode"] != nil || k.KubeProxy["ipvs"] == nil {
		t.Errorf("%+v", k)
	}
	said := false
	for _, n := range notes {
		said = said || strings.Contains(n.String(), "clusterDNS of the configuration of kubelet is not carried over")
	}
	if !said {
		t.Errorf("notes: %v", notes)
	}
}

// oneHost is a file of KubeKey v3 without its last setting.
const oneHost = `apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
metadata: {name: a}
spec:
  hosts: [{name: n1, address: 10.0.0.1, internalAddress: 10.0.0.1, user: root, privateKeyPath: ~/.ssh/id}]
  roleGroups: {etcd: [n1], control-plane: [n1], worker: [n1]}
  kubernetes: {version: v1.34.3}
`

// TestIPv6Endpoint wants the address of an endpoint in brackets, which KubeKey has none of.
func TestIPv6Endpoint(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		`{internalLoadbalancer: kube-vip, address: "fd00::100", port: 6443}`: "[fd00::100]",
		`{address: "fd00::100", port: 8443}`:                                 "[fd00::100]:8443",
	} {
		c, _, err := kubekey.ReadCluster("kk.yaml", []byte(oneHost+"  controlPlaneEndpoint: "+endpoint+"\n"))
		if err != nil || c.ControlPlaneEndpoint.Address != want {
			t.Errorf("%s: %v, %v; want %s", endpoint, c, err, want)
		}
	}
}

// TestRegistryLogin wants the login of a registry whose address and key of auths differ in the scheme or the path.
func TestRegistryLogin(t *testing.T) {
	t.Parallel()
	for registry, want := range map[string]string{
		`{privateRegistry: "https://harbor.site:8443", auths: {"https://harbor.site:8443": {username: a, password: x}}}`:                "a",
		`{privateRegistry: "https://harbor.site:8443", auths: {"harbor.site:8443": {username: a, password: x}}}`:                        "a",
		`{privateRegistry: harbor.site, auths: {"https://harbor.site/": {username: a, password: x}}}`:                                   "a",
		`{privateRegistry: "10.0.0.9:8088/library", auths: {"10.0.0.9:8088": {username: a, password: x}}}`:                              "a",
		`{privateRegistry: harbor.site/x, auths: {harbor.site: {username: b, password: x}, harbor.site/x: {username: a, password: x}}}`: "a",
		`{privateRegistry: harbor.site, auths: {other.site: {username: a, password: x}}}`:                                               "",
	} {
		c, _, err := kubekey.ReadCluster("kk.yaml", []byte(oneHost+"  registry: "+registry+"\n"))
		got := ""
		if err == nil && c.ImageRegistry.Auth != nil {
			got = c.ImageRegistry.Auth.Username
		}
		if err != nil || got != want {
			t.Errorf("%s: %v, %q; want %q", registry, err, got, want)
		}
	}
}

// TestVersionBesideKubernetes reads the version where KubeKey's first files of v4 have it; the later place wins.
func TestVersionBesideKubernetes(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"{kube_version: v1.34.3}":                                      "v1.34.3",
		"{kube_version: 1.34.3, kubernetes: {cluster_name: a}}":        "v1.34.3",
		"{kube_version: v1.33.7, kubernetes: {kube_version: v1.34.3}}": "v1.34.3",
	} {
		c, _, err := kubekey.ReadCluster("kk.yaml",
			[]byte("apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec: "+spec+"\n"))
		if err != nil || c.Kubernetes.Version != want {
			t.Errorf("%s: %+v, %v", spec, c, err)
		}
	}
}

// TestMachineTemplateAlone: documents of CAPKK without their KKCluster describe no cluster.
func TestMachineTemplateAlone(t *testing.T) {
	t.Parallel()
	_, _, err := kubekey.ReadCluster("kk.yaml", []byte(`apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: KKMachineTemplate
metadata: {name: workers}
spec: {template: {spec: {roles: [worker]}}}
`))
	if err == nil || !strings.HasPrefix(err.Error(), "kk.yaml:1:1: there is no KKCluster in it") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// TestChartValuesAsText: values of a chart are noted, also where they are a text.
func TestChartValuesAsText(t *testing.T) {
	t.Parallel()
	_, notes, err := kubekey.ReadCluster("kk.yaml", []byte(oneHost+
		"  addons: [{name: a, sources: {chart: {name: a, repo: https://charts.example, version: 1.0.0, values: a=b}}}]\n"))
	if err != nil || !slices.ContainsFunc(notes, func(p document.Problem) bool {
		return strings.Contains(p.Message, "values is not carried over: write the values into a file")
	}) {
		t.Errorf("got %v, %v", notes, err)
	}
}

// TestNetworksOfFirstReleases reads the names that the networks had in KubeKey's first releases; the later names win.
func TestNetworksOfFirstReleases(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]string{
		"{podNetworkCidr: 10.1.0.0/16, serviceNetworkCidr: 10.2.0.0/16}":                         "10.1.0.0/16 10.2.0.0/16",
		"{kubePodsCIDR: 10.1.0.0/16, podNetworkCidr: 10.9.0.0/16, kubeServiceCIDR: 10.2.0.0/16}": "10.1.0.0/16 10.2.0.0/16",
	} {
		c, notes, err := kubekey.ReadCluster("kk.yaml", []byte(oneHost+"  network: "+network+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		k := c.Kubernetes
		if got := fmt.Sprintf("%v %v", k.PodCIDR, k.ServiceCIDR); got != want || strings.Contains(fmt.Sprint(notes), "Cidr") {
			t.Errorf("%s: %s, want %s; notes %v", network, got, want, notes)
		}
	}
}
