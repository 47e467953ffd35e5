package handover

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestThreeControlPlanes: what Cluster API compares is the same for KubeadmControlPlane and each of its machines, with
// the gate that it adds before 1.36, and describes later control planes: no taint, two families, kube-vip's manifest.
func TestThreeControlPlanes(t *testing.T) {
	t.Parallel()
	f := &found{
		to: Target{Namespace: "pool", Bundle: "site", RegistrySecret: "registry", Login: "login"}, endpoint: "10.0.0.99:6443",
		cluster: tasktest.Cluster(t, "kubernetes: {version: v1.35.4}\ncontrolPlaneEndpoint: {type: kube-vip, address: 10.0.0.99}\n"),
		config:  map[string]any{"networking": map[string]any{"podSubnet": "10.244.0.0/16,fd00::/56", "serviceSubnet": "10.96.0.0/16"}},
		files:   []file{{endpoint.KubeVIPManifest, "kind: Pod\n"}}, authorities: map[string]string{}, socket: "unix:///run/containerd/containerd.sock",
	}
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		h := manifest.Host{Name: name, Address: name + ".site", InternalIPv4: netip.MustParseAddr("10.0.0.1"), Roles: []manifest.Role{manifest.RoleControlPlane, manifest.RoleWorker}}
		f.nodes = append(f.nodes, node{host: h, addresses: []string{"10.0.0.1", "fd00::1"}, live: &corev1.Node{}})
	}
	planes, workers := f.sets()
	if len(planes.nodes) != 3 || len(workers.nodes) != 0 {
		t.Fatalf("%d control planes, %d workers", len(planes.nodes), len(workers.nodes))
	}
	want := kube.Document{
		"clusterConfiguration": kube.Document{"featureGates": kube.Document{localMode: true}},
		"files": []any{kube.Document{
			"path": endpoint.KubeVIPManifest, "owner": "root:root", "permissions": "0600",
			"contentFrom": kube.Document{"secret": kube.Document{"name": "site-files", "key": "0-kube-vip.yaml"}},
		}},
		"joinConfiguration": kube.Document{
			"controlPlane": kube.Document{"localAPIEndpoint": kube.Document{"advertiseAddress": "{{ ds.meta_data.local_ipv4 }}"}},
			"nodeRegistration": kube.Document{
				"name": "{{ ds.meta_data.local_hostname }}", "criSocket": "unix:///run/containerd/containerd.sock", "taints": []any{},
				"kubeletExtraArgs": []any{kube.Document{"name": "node-ip", "value": "{{ ds.meta_data.local_ipv4 }},{{ ds.meta_data.local_ipv6 }}"}},
			},
		},
	}
	spec, _ := f.controlPlane(planes)["spec"].(kube.Document)
	if diff := cmp.Diff(want, spec["kubeadmConfigSpec"]); diff != "" || spec["replicas"] != 3 {
		t.Errorf("KubeadmControlPlane with %v replicas (-want +got):\n%s", spec["replicas"], diff)
	}
	for _, n := range planes.nodes {
		if diff := cmp.Diff(want, f.kubeadmConfig(planes, n)["spec"]); diff != "" {
			t.Errorf("KubeadmConfig of %s (-want +got):\n%s", n.host.Name, diff)
		}
	}
	host, _ := f.kkHost(f.nodes[0])["spec"].(kube.Document)
	if host["internalIPv4"] != "10.0.0.1" || host["internalIPv6"] != "fd00::1" {
		t.Errorf("the host's addresses: %v", host)
	}
	cluster, _ := f.clusterObjects()[0]["spec"].(kube.Document)
	if diff := cmp.Diff(kube.Document{"host": "10.0.0.99", "port": 6443}, cluster["controlPlaneEndpoint"]); diff != "" {
		t.Error(diff)
	}
}

// TestPeriods: certificates of later control planes are valid as long as those of today.
func TestPeriods(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		leaf, authority string
		want            kube.Document
	}{
		{"8760h0m0s", "87600h0m0s", kube.Document{}},
		{"26280h0m0s", "175200h0m0s", kube.Document{
			"certificateValidityPeriodDays": 1095, "caCertificateValidityPeriodDays": 7300,
		}},
	} {
		f := &found{
			cluster: tasktest.Cluster(t, "kubernetes: {version: v1.36.3}\n"),
			config:  map[string]any{"certificateValidityPeriod": one.leaf, "caCertificateValidityPeriod": one.authority},
		}
		if diff := cmp.Diff(one.want, f.clusterConfiguration()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for _, text := range []string{"36h0m0s", "0s", "long", "26304h0m0s"} {
		if days, err := periods()[0].days(map[string]any{"certificateValidityPeriod": text}); err == nil {
			t.Errorf("%s is %d days", text, days)
		}
	}
}

// TestRuntimesOfTheBundle: runtimes that the bundle's cluster file has, too, stay.
func TestRuntimesOfTheBundle(t *testing.T) {
	t.Parallel()
	const text = "cri: {runtimeClasses: [{name: kata, type: io.containerd.kata.v2}]}\n"
	c := tasktest.Cluster(t, "imageRegistry: {type: existing, address: registry.site:5000}\n"+text)
	classes := tasktest.Cluster(t, text).CRI.RuntimeClasses
	f := &found{cluster: c, carried: classes}
	if l := f.refuseFile(); len(l) > 0 {
		t.Errorf("the bundle has them: %q", l)
	}
	if f.carried = nil; len(f.refuseFile()) != 1 {
		t.Errorf("the bundle has none: %q", f.refuseFile())
	}
}
