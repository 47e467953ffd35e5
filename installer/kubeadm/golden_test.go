package kubeadm

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestKubeadmFiles(t *testing.T) {
	t.Parallel()
	ip := netip.MustParseAddr("10.0.0.3")
	custom := `kubernetes:
  version: v1.34.3
  podCIDR: 10.251.0.0/16
  serviceCIDR: 10.252.0.0/16
  maxPods: 64
  proxyMode: nftables
  kubelet: {failCgroupV1: false, evictionHard: {memory.available: 5%}}
  kubeadm: {apiServer: {certSANs: [api.example]}}
  kubeProxy: {conntrack: {maxPerCore: 0, min: 0}}
controlPlaneEndpoint: {address: api.example}
dns: {domain: k8s.site.example}
`
	hardenedCluster := `kubernetes:
  version: v1.34.3
  security: hardened
  podCIDR: 10.251.0.0/16,fd00:251::/48
  serviceCIDR: 10.252.0.0/16,fd00:252::/112
  proxyMode: ipvs
  kubeadm:
    apiServer:
      extraArgs: {audit-log-maxage: 90, profiling: null}
      extraVolumes: [{name: mine, hostPath: /etc/mine, mountPath: /etc/mine}]
etcd: {quota: 8Gi}
cni: {ipv4MaskSize: 25, ipv6MaskSize: 60}
`
	for name, c := range map[string]*manifest.Cluster{
		"default": tasktest.Cluster(t, ""),
		"custom":  tasktest.Cluster(t, custom),
		"beta3": tasktest.Cluster(t,
			"kubernetes: {version: v1.30.14, kubeadm: {apiServer: {extraArgs: [{name: profiling, value: true}]}}}"),
		"hardened": tasktest.Cluster(t, hardenedCluster),
	} {
		r := &task.Site{Cluster: c}
		r.Hosts = []*task.Host{{
			Host: manifest.Host{Name: "cp1", Roles: []manifest.Role{manifest.RoleControlPlane}},
			IP:   ip, Site: r,
		}}
		config, err := NewConfig(c, c.ControlPlaneEndpoint.HostPort(ip.String()), Parts(r, true)...)
		if err != nil {
			t.Fatal(err)
		}
		token := "abcdef.0123456789abcdef"
		initial, err := config.init(Node{
			name: "cp1", IPs: []netip.Addr{ip}, token: token, controlPlane: true,
			worker: name == "custom",
		})
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Golden(t, "kubeadm-init-"+name+".yaml", initial)
		join, err := config.join(Node{
			name: "cp2", IPs: []netip.Addr{ip.Next()}, token: token, pin: "sha256:00",
			controlPlane: name == "custom", worker: true, certificateKey: "11",
		})
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Golden(t, "kubeadm-join-"+name+".yaml", join)
	}
}

func TestMergedLeavesItsArgumentsAlone(t *testing.T) {
	t.Parallel()
	base := kube.Document{"a": kube.Document{"b": 1, "c": 2}, "d": 3}
	over := map[string]any{"a": map[string]any{"c": 4}, "d": []any{5}}
	got := merge(base, over)
	want := kube.Document{"a": kube.Document{"b": 1, "c": 4}, "d": []any{5}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(base, kube.Document{"a": kube.Document{"b": 1, "c": 2}, "d": 3}); diff != "" {
		t.Error("merged changed its argument:", diff)
	}
}

func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	got, err := bootstrapToken("abcdef.0123456789abcdef", "2026-11-20T15:00:00Z", "made by kkbundle for node1")
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "token.yaml", got)
}
