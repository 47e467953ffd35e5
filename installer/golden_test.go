package installer

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares text with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("%s (-got +want; -update writes it):\n%s", name, diff)
	}
}

// cluster parses a cluster file.
func cluster(t *testing.T, more string) *manifest.Cluster {
	t.Helper()
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\n"
	if !strings.Contains(more, "kubernetes:") {
		text += "kubernetes: {version: v1.34.3}\n"
	}
	c, err := manifest.ParseCluster("cluster.yaml", []byte(text+more))
	if err != nil {
		t.Fatal(err)
	}
	return c.WithDefaults()
}

func TestPlan(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	where := map[Where]string{Each: "each", OneByOne: "one by one", First: "first", Here: "here", Reached: "reached"}
	for _, phase := range Plan(cluster(t, "addons: [{chart: demo, release: shop, namespace: shop}]")) {
		fmt.Fprintf(&b, "%s\n", phase.Name)
		for _, task := range phase.Tasks {
			kind := "task"
			if task.Done == nil {
				kind = "check"
			}
			fmt.Fprintf(&b, "  %s %s: %s %v\n", kind, task.Name, where[task.Where], task.Roles)
			for _, f := range task.Files {
				fmt.Fprintf(&b, "    file %s %s -> %s %04o\n", f.Component, f.Member, f.Path, f.Mode)
			}
			for _, name := range task.Images {
				fmt.Fprintf(&b, "    image %s\n", name)
			}
			for _, name := range task.Charts {
				fmt.Fprintf(&b, "    chart %s\n", name)
			}
		}
	}
	b.WriteString("needs\n")
	for _, n := range Needs(cluster(t, "")) {
		fmt.Fprintf(&b, "  %s %s\n", n.Kind, n.Name)
	}
	golden(t, "plan.txt", []byte(b.String()))
}

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
  kubeadm: {apiServer: {certSANs: [api.example]}, networking: {dnsDomain: cluster.local}}
  kubeProxy: {conntrack: {maxPerCore: 0, min: 0}}
controlPlaneEndpoint: {address: api.example}
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
    etcd: {local: {extraArgs: [{name: quota-backend-bytes, value: "8589934592"}]}}
cni: {ipv4MaskSize: 25, ipv6MaskSize: 60}
`
	for name, c := range map[string]*manifest.Cluster{
		"default":  cluster(t, ""),
		"custom":   cluster(t, custom),
		"beta3":    cluster(t, "kubernetes: {version: v1.30.14, kubeadm: {apiServer: {extraArgs: [{name: profiling, value: true}]}}}"),
		"hardened": cluster(t, hardenedCluster),
	} {
		r := &Site{cluster: c}
		r.targets = []*Target{{Host: manifest.Host{Name: "cp1", Roles: []manifest.Role{manifest.RoleControlPlane}}, IP: ip, run: r}}
		config, err := newKubeadmConfig(c, c.ControlPlaneEndpoint.HostPort(ip.String()), r.parts()...)
		if err != nil {
			t.Fatal(err)
		}
		token := "abcdef.0123456789abcdef"
		initial, err := config.init(joining{name: "cp1", ips: []netip.Addr{ip}, token: token, controlPlane: true, worker: name == "custom"})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "kubeadm-init-"+name+".yaml", initial)
		join, err := config.join(joining{name: "cp2", ips: []netip.Addr{ip.Next()}, token: token, pin: "sha256:00", controlPlane: name == "custom", worker: true, certificateKey: "11"})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "kubeadm-join-"+name+".yaml", join)
	}
}

func TestMergedLeavesItsArgumentsAlone(t *testing.T) {
	t.Parallel()
	base := document{"a": document{"b": 1, "c": 2}, "d": 3}
	over := map[string]any{"a": map[string]any{"c": 4}, "d": []any{5}}
	got := merged(base, over)
	want := document{"a": document{"b": 1, "c": 4}, "d": []any{5}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(base, document{"a": document{"b": 1, "c": 2}, "d": 3}); diff != "" {
		t.Error("merged changed its argument:", diff)
	}
}

func TestContainerdFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*manifest.Cluster{
		"v2": cluster(t, ""),
		"v1": cluster(t, "cri: {version: v1.7.30}"),
	} {
		got, err := containerdConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "containerd-"+name+".toml", got)
	}
	access := registryAccess{address: "10.0.0.3:5000", ca: []byte("CA"), registryLogin: registryLogin{"kkbundle", "pass"}}
	var b strings.Builder
	for _, f := range hostsFiles(access, []string{"docker.io", "registry.example:5000"}) {
		fmt.Fprintf(&b, "== %s %04o\n%s", f.path, f.mode, f.data)
	}
	golden(t, "hosts.toml.txt", []byte(b.String()))
}

func TestRegistryConfig(t *testing.T) {
	t.Parallel()
	got, err := registryConfig("10.0.0.3:5000", "secret")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "registry.yaml", got)
}

func TestFlannelValues(t *testing.T) {
	t.Parallel()
	nodes := []*Target{{IP: netip.MustParseAddr("10.0.0.3")}, {IP: netip.MustParseAddr("10.0.0.4")}}
	values, err := flannelValues(cluster(t, ""), nodes)
	if err != nil {
		t.Fatal(err)
	}
	got, err := kube.Documents(values)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "flannel-values.yaml", got)
}

func TestProofObjects(t *testing.T) {
	t.Parallel()
	nodes := []*Target{{Host: manifest.Host{Name: "cp1"}}, {Host: manifest.Host{Name: "node1"}}}
	objects := append(proofServices(nodes), proofPods(nodes, map[string][]string{proofName(0): {"10.233.1.1"}, proofName(1): {"10.233.1.2", "fd00:233::2"}}, "registry.k8s.io/coredns/coredns:v1.12.1")...)
	got, err := kube.YAML(objects...)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "proof.yaml", got)
}

func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	got, err := bootstrapToken("abcdef.0123456789abcdef", "2026-11-20T15:00:00Z", "made by kkbundle for node1")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "token.yaml", got)
}
