package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHardened installs a hardened dual-stack cluster with patches, arguments, labels, taints and per-host settings,
// and changes them.
func TestHardened(t *testing.T) {
	th := start(t, scenario{hosts: 2, edit: func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "  kubelet: {failCgroupV1: false}\n", `  kubelet: {failCgroupV1: false}
  security: hardened
  podCIDR: 10.233.64.0/18,fd00:233:64::/56
  serviceCIDR: 10.233.0.0/18,fd00:233::/112
  kubeadm:
    apiServer: {extraArgs: {audit-log-maxage: 7}, certSANs: [api.lab.example]}
  patches: [patches/kube-scheduler0+merge.yaml]
`)
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "cni: {type: flannel}\n",
			"cni: {type: flannel, ipv4MaskSize: 25}\n")
		if err := os.Mkdir(filepath.Join(dir, "patches"), 0o755); err != nil {
			t.Fatal(err)
		}
		patch := "metadata: {annotations: {lab.example/patched: \"yes\"}}\n"
		if err := os.WriteFile(filepath.Join(dir, "patches", "kube-scheduler0+merge.yaml"), []byte(patch),
			0o644); err != nil {
			t.Fatal(err)
		}
	}})
	th.makeBundle(t)
	const marks = "labels: {lab.example/disk: ssd}, annotations: {lab.example/note: \"rack 1\"}, taints: [lab.example/only=web:PreferNoSchedule], cluster: {kubernetes: {maxPods: 50}}"
	rewrite(t, th.inventory, "  host2: {", "  host2: {"+marks+", ")
	steps(t, []step{
		{"a hardened cluster of two families is installed and verified", th.hardened},
		{"labels, annotations, taints and the kubelet follow the inventory", th.marks},
	})
}

func (th *thread) hardened(t *testing.T) {
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s\n%s", r.took, r.stderr)
	if strings.Contains(r.stderr, "kube-flannel") {
		t.Error("it warns of the pod network's own pods")
	}
	for what, want := range map[string]string{
		"get node host2 --output=jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'":                                                       "10.250.0.12 fd00:250::12",
		"get node host2 --output=jsonpath='{.metadata.labels.lab\\.example/disk} {.metadata.annotations.lab\\.example/note} {.spec.taints[*].key}'":       "ssd rack 1 lab.example/only",
		"get node host2 --output=jsonpath='{.status.capacity.pods} {.spec.podCIDRs[0]}'":                                                                  "50 ",
		"get node host1 --output=jsonpath='{.status.capacity.pods}'":                                                                                      "110",
		"get pods --namespace=kube-system --selector=component=kube-scheduler --output=jsonpath='{.items[*].metadata.annotations.lab\\.example/patched}'": "yes",
		"get pods --namespace=kube-system --selector=component=kube-apiserver --output=yaml":                                                              "--audit-log-maxage=7",
	} {
		if got := th.kubectl(t, what); !strings.Contains(got, want) {
			t.Errorf("kubectl %s: %s, want %s", what, got, want)
		}
	}
	if got := th.on(t, 1, "openssl version >/dev/null 2>&1; ip -6 route show fd00:233::/112; cat /etc/hosts"); !strings.Contains(got, "fd00:233::/112 dev lo") || !strings.Contains(got, "fd00:250::12 host2") {
		t.Errorf("host1 has %s", got)
	}
	// A pod without any rights of its own is taken, one that is privileged is not, in a namespace that nobody has
	// labelled.
	th.on(t, 1, "! kubectl --kubeconfig /etc/kubernetes/admin.conf run bad --image=none --privileged 2>/tmp/said && grep -q PodSecurity /tmp/said")
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stdout+r.stderr, "0 changed") {
		t.Errorf("a rerun changes something:\n%s", r.stderr)
	}
}

func (th *thread) marks(t *testing.T) {
	th.kubectl(t, "label node host2 theirs=stays")
	rewrite(t, th.inventory, "lab.example/disk: ssd", "lab.example/rack: r7")
	rewrite(t, th.inventory, "taints: [lab.example/only=web:PreferNoSchedule]", "taints: []")
	rewrite(t, th.inventory, "maxPods: 50", "maxPods: 60")
	run(t, th.site(t, "install")).must(t, 0)
	got := th.kubectl(t, "get node host2 --output=jsonpath='{.metadata.labels} {.spec.taints}'")
	if strings.Contains(got, "lab.example/disk") || strings.Contains(got, "lab.example/only") ||
		!strings.Contains(got, `"lab.example/rack":"r7"`) || !strings.Contains(got, `"theirs":"stays"`) {
		t.Errorf("host2 has %s", got)
	}
	eventually(t, "the kubelet takes another number of pods", func() bool {
		return th.kubectl(t, "get node host2 --output=jsonpath='{.status.capacity.pods}'") == "60"
	})
}
