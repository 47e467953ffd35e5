package manifest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/document"
)

func TestClusterWithDefaults(t *testing.T) {
	c, err := ParseCluster("c", []byte(`{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a},
kubernetes: {version: v1.34.3, kubelet: {a: {b: [1]}}}, addons: [{chart: web}]}`))
	if err != nil {
		t.Fatal(err)
	}
	d := c.WithDefaults()
	got := []any{
		d.Kubernetes.Distribution, d.Kubernetes.PodCIDR.String(), d.Kubernetes.ServiceCIDR.String(),
		d.Kubernetes.MaxPods,
		d.Kubernetes.ProxyMode, d.ControlPlaneEndpoint.Type, d.Etcd.Type, d.CRI.Type, d.CNI.Type, d.ImageRegistry.Type,
		d.ImageRegistry.Port, d.Precheck.MinMemory.ControlPlane.Bytes(), d.Precheck.MinMemory.Worker.Bytes(),
		d.Precheck.MinKernel, d.Addons[0].Namespace, d.Addons[0].Release,
	}
	want := []any{
		Distribution("kubernetes"), "10.233.64.0/18", "10.233.0.0/18", 110, ProxyMode("iptables"),
		EndpointType("local"),
		EtcdType("internal"), RuntimeType("containerd"), NetworkType("flannel"), RegistryType("registry"), 5000,
		int64(1782579200), int64(1073741824), "4.9.17", "default", "web",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("defaults (-got +want):\n%s", diff)
	}
	d.Kubernetes.Kubelet["a"].(map[string]any)["b"].([]any)[0] = 2
	d.Addons[0].Chart = "other"
	if c.Kubernetes.Kubelet["a"].(map[string]any)["b"].([]any)[0] != int64(1) || c.Addons[0].Chart != "web" ||
		c.Addons[0].Release != "" {
		t.Error("the copy shares memory with what it was made from")
	}
	if diff := cmp.Diff(d.WithDefaults(), d, content()); diff != "" {
		t.Errorf("defaults of defaults differ:\n%s", diff)
	}
}

func TestClusterFreeForm(t *testing.T) {
	c, err := ParseCluster("c", []byte(`{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a},
kubernetes: {version: v1.34.3, kubelet: {b: true, i: 0o17, f: 0.5, s: "1", n: null, t: 2026-01-02, d: 4m0s, l: [a, {x: 1}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		"b": true, "i": int64(15), "f": 0.5, "s": "1", "n": nil, "t": "2026-01-02", "d": "4m0s",
		"l": []any{"a", map[string]any{"x": int64(1)}},
	}
	if diff := cmp.Diff(c.Kubernetes.Kubelet, want); diff != "" {
		t.Errorf("kubelet (-got +want):\n%s", diff)
	}
}

func TestClusterProblem(t *testing.T) {
	c, err := ParseCluster("c.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\n"+
		"kubernetes: {version: v1.34.3}\ncomponents:\n  odd.name: {version: v1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := c.Problem("components[odd.name].version", "no").Error()
	if want := "c.yaml:6:23: components[odd.name].version: no"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (&Cluster{}).Problem("cri", "no").Error(), "cri: no"; got != want {
		t.Errorf("without a file: got %q, want %q", got, want)
	}
}

func TestEndpointHostPort(t *testing.T) {
	for _, tc := range [][3]string{
		{"", "10.0.0.1", "10.0.0.1:6443"},
		{"", "fd00::1", "[fd00::1]:6443"},
		{"api.site", "10.0.0.1", "api.site:6443"},
		{"api.site:8443", "10.0.0.1", "api.site:8443"},
		{"[fd00::2]:8443", "10.0.0.1", "[fd00::2]:8443"},
	} {
		if got := (Endpoint{Address: tc[0]}).HostPort(tc[1]); got != tc[2] {
			t.Errorf("%q with %q: got %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}

func TestLimits(t *testing.T) {
	for name, data := range map[string][]byte{
		"too large":       make([]byte, document.MaxFileSize+1),
		"too many values": append([]byte("[a"), bytesOf(",a", 310_000)...),
		"deep brackets":   bytesOf("[", 250_000),
	} {
		if _, err := ParseBundle(name, data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	var many []byte
	for range 1000 {
		many = append(many, "- {x: 1}\n"...)
	}
	_, err := ParseBundle("many", append([]byte("apiVersion: kkbundle.io/v1\nkind: Bundle\ncharts:\n"), many...))
	var problems document.Problems
	if !errors.As(err, &problems) || len(problems) > document.MaxProblems+1 {
		t.Errorf("%d problems, want at most %d", len(problems), document.MaxProblems+1)
	}
}

func bytesOf(s string, n int) []byte {
	var b []byte
	for range n {
		b = append(b, s...)
	}
	return b
}

// TestNamesThatKubeadmTakes: kubeadm takes DNS names in lower case alone, and finds others only on a host.
func TestNamesThatKubeadmTakes(t *testing.T) {
	for text, want := range map[string]string{
		"controlPlaneEndpoint: {type: external, address: 'K8s.Corp.example:6443'}": `"K8s.Corp.example" is no DNS name in lower case, which kubeadm asks for; write "k8s.corp.example"`,
		"controlPlaneEndpoint: {type: external, address: k8s.corp.example.}":       `write "k8s.corp.example"`,
		"controlPlaneEndpoint: {type: external, address: k8s_api.example}":         "neither a host nor host:port",
		"controlPlaneEndpoint: {type: external, address: 169.254.1.1}":             "nodes do not reach 169.254.1.1",
		"controlPlaneEndpoint: {type: external, address: 0.0.0.0}":                 "nodes do not reach 0.0.0.0",
		"controlPlaneEndpoint: {type: kube-vip, address: 127.0.0.1}":               "nodes do not reach 127.0.0.1",
		// a balancer of yours on each node
		"controlPlaneEndpoint: {type: external, address: 127.0.0.1}":            "",
		"controlPlaneEndpoint: {type: external, address: k8s.corp.example:443}": "",
		"controlPlaneEndpoint: {type: kube-vip, address: 'fd00::1'}":            "neither a host nor host:port; write an IPv6 address in brackets: [fd00::1]",
		"controlPlaneEndpoint: {type: kube-vip, address: '[fd00::1]'}":          "",
		"dns: {domain: k8s.corp.example}":                                       "",
		"dns: {domain: K8s.corp}":                                               `dns.domain: "K8s.corp" is no domain`,
		"dns: {domain: .}":                                                      "is no domain",
		"dns: {domain: 10.0.0.1}":                                               "is no domain",
		"imageRegistry: {vip: 169.254.0.9}":                                     "is not an address",
	} {
		c, err := ParseCluster("c",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\n"+
				text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err == nil && c.WithDefaults().DNS.Domain == "" {
			t.Errorf("%s: no domain", text)
		}
	}
}
