package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/results"
)

// guarded is an application that only pods of the namespace web may ask. Its pods are on both nodes.
const guarded = `
apiVersion: v1
kind: Namespace
metadata: {name: guarded}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: guarded, namespace: guarded}
spec:
  replicas: 2
  selector: {matchLabels: {app: guarded}}
  template:
    metadata: {labels: {app: guarded}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: guarded}}}]
      containers:
        - name: labapp
          image: docker.io/lab/labapp:1
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-web, namespace: guarded}
spec:
  podSelector: {matchLabels: {app: guarded}}
  ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: web}}}]}]
`

// A policed is a cluster whose network enforces NetworkPolicies, or one whose network goes to its next minor release
// and back.
type policed struct{ *upgraded }

// mountBPF gives each host its file system for BPF: systemd does it on a machine of its own.
func (th policed) mountBPF(t *testing.T) {
	t.Helper()
	for _, h := range th.lab.Hosts {
		th.on(t, h.Number, "mount -o remount,rw /sys && mkdir /sys/fs/bpf && mount -o remount,ro /sys && mount -t bpf bpf /sys/fs/bpf")
	}
}

// installed installs the cluster and an application that only pods of the namespace web may ask.
func (th policed) installed(t *testing.T) {
	t.Helper()
	r := run(t, th.site(t, "install")).must(t, 0)
	name, version := th.from.network()
	t.Logf("install with %s %s: %s\n%s", name, version, r.took.Round(time.Second), r.stderr)
	th.apply(t, steady+"---"+guarded)
	th.kubectl(t, "-n steady rollout status deployment/steady --timeout=5m")
	th.kubectl(t, "-n guarded rollout status deployment/guarded --timeout=5m")
}

func (th policed) begin(t *testing.T) {
	th.makeBundle(t)
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), th.from.lines(), th.to.lines())
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	th.installed(t)
}

// works checks versions, services on both nodes, and that the policy is enforced on each node, in each family.
func (th policed) works(t *testing.T, want side) {
	t.Helper()
	th.cluster(t)
	th.running(t, want)
	if pods := strings.Fields(th.kubectl(t, "-n guarded get pods -o name")); len(pods) != th.nodes {
		t.Fatalf("want a guarded pod on each node, got %q", pods)
	}
	web := strings.Fields(th.kubectl(t, "-n web get pods -o name"))
	other := strings.Fields(th.kubectl(t, "-n steady get pods -o name"))
	for address := range strings.FieldsSeq(th.kubectl(t,
		"-n guarded get pods -o jsonpath={.items[*].status.podIPs[*].ip}")) {
		url := "http://" + net.JoinHostPort(address, "8080") + "/"
		for _, pod := range web {
			th.kubectl(t, fmt.Sprintf("-n web exec %s -- /labapp get %s", pod, url))
		}
		for _, pod := range other {
			got := th.kubectl(t, fmt.Sprintf("-n steady exec %s -- /labapp get %s 2>&1 || true", pod, url))
			if !strings.Contains(got, "deadline exceeded") {
				t.Errorf("%s of the namespace steady asked %s, which the policy forbids, and got\n%s", pod, url, got)
			}
		}
	}
}

func (th policed) upgrade(t *testing.T) {
	plan := run(t, th.withNext(t, "upgrade", "--plan")).must(t, 0)
	name, from := th.from.network()
	_, to := th.to.network()
	if want := name + " " + strings.TrimPrefix(from, "v") + " -> " +
		strings.TrimPrefix(to, "v"); !strings.Contains(plan.stderr, want) {
		t.Errorf("no %q in\n%s", want, plan.stderr)
	}
	pods := th.kubectl(t, "-n steady get pods -o name")
	th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, nil,
		func(flags ...string) *exec.Cmd { return th.withNext(t, "upgrade", flags...) })
	if after := th.kubectl(t, "-n steady get pods -o name"); after != pods {
		t.Errorf("pods of the application were replaced:\n%s\n%s", pods, after)
	}
}

func (th policed) rollback(t *testing.T) {
	th.move(t, results.Move{From: th.to.Version, To: th.from.Version, Rollback: true}, nil,
		func(flags ...string) *exec.Cmd {
			return th.site(t, "upgrade", append(flags, "--rollback")...)
		})
}
