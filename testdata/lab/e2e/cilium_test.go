package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// ciliumValues leave out Envoy, whose image cannot be had, and Hubble's relay and page. external-envoy-proxy, which
// the chart sets by default, keeps the agent from starting an Envoy of its own; only policies for HTTP need one. The
// capabilities are the chart's without SYS_RESOURCE, which a machine in a sandbox may lack.
const ciliumValues = `envoy: {enabled: false}
extraConfig: {external-envoy-proxy: "true"}
hubble: {relay: {enabled: false}, ui: {enabled: false}, tls: {auto: {method: helm}}}
securityContext:
  capabilities:
    ciliumAgent: [CHOWN, KILL, NET_ADMIN, NET_RAW, IPC_LOCK, SYS_MODULE, SYS_ADMIN, DAC_OVERRIDE, FOWNER, SETGID, SETUID, SYSLOG]
    cleanCiliumState: [NET_ADMIN, SYS_MODULE, SYS_ADMIN]
`

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

// A ciliumThread is a cluster with Cilium, or one whose Cilium goes to the next minor release and back.
type ciliumThread struct{ *upgraded }

// TestCilium installs two nodes with Cilium, and removes it. Agent, operator and chart are genuine; there is no Envoy.
func TestCilium(t *testing.T) {
	th := newCilium(t, "", software.Cilium)
	steps(t, []step{
		{"a cluster", func(t *testing.T) { th.makeBundle(t); th.installed(t) }},
		{
			"pods reach each other and services on both nodes, and a policy forbids",
			func(t *testing.T) { th.works(t, th.from) },
		},
		{"a rerun changes nothing", th.rerun},
		{"status says healthy", th.looks},
		{"reset leaves nothing", th.reset},
		{"no packet left the hosts' network", th.packets},
	})
}

// TestUpgradeCilium takes Cilium to its next minor release and back, under running pods and while an application
// answers.
func TestUpgradeCilium(t *testing.T) {
	th := newCilium(t, "1 control plane, 2 nodes; Cilium "+software.CiliumVersion+" to "+software.CiliumNextVersion,
		software.Cilium, software.CiliumNext)
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"Cilium goes to its next minor release, and the application answers", th.upgrade},
		{"everything works with the next release", func(t *testing.T) { th.works(t, th.to) }},
		{"a rerun changes nothing", th.again},
		{"Cilium goes back, and the application answers", th.rollback},
		{"everything works with the first release", func(t *testing.T) { th.works(t, th.from) }},
		{"reset leaves nothing", th.reset},
		{"no packet left the hosts' network", th.packets},
	})
}

// newCilium starts the lab. Kubernetes is of the newest minor release that both releases of Cilium are for, and stays.
func newCilium(t *testing.T, name string, releases ...software.Extra) ciliumThread {
	t.Helper()
	release := software.KubernetesReleases()[software.Kubernetes135]
	th := ciliumThread{newUpgraded(t, moved{
		name: name, hosts: 2, groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with: append(releases, software.Kubernetes135),
		from: side{KubernetesRelease: release, containerd: software.ContainerdVersion, cilium: software.CiliumVersion},
		to: side{
			KubernetesRelease: release, containerd: software.ContainerdVersion,
			cilium: software.CiliumNextVersion,
		},
	})}
	write(t, th.dir, map[string]string{"cilium.yaml": ciliumValues})
	for number := range th.nodes { // systemd does it on a machine of its own
		th.on(t, number+1, "mount -o remount,rw /sys && mkdir /sys/fs/bpf && mount -o remount,ro /sys && mount -t bpf bpf /sys/fs/bpf")
	}
	th.pristine = th.traces(t)
	return th
}

// installed installs the cluster and an application that only pods of the namespace web may ask.
func (th ciliumThread) installed(t *testing.T) {
	t.Helper()
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install with Cilium %s: %s\n%s", th.from.cilium, r.took.Round(time.Second), r.stderr)
	th.apply(t, steady+"---"+guarded)
	th.kubectl(t, "-n steady rollout status deployment/steady --timeout=5m")
	th.kubectl(t, "-n guarded rollout status deployment/guarded --timeout=5m")
}

func (th ciliumThread) begin(t *testing.T) {
	th.makeBundle(t)
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), th.from.lines(), th.to.lines())
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	th.installed(t)
}

// works checks versions, services on both nodes, and that the policy is enforced on both.
func (th ciliumThread) works(t *testing.T, want side) {
	t.Helper()
	th.cluster(t)
	th.running(t, want)
	pods := strings.Fields(th.kubectl(t, "-n guarded get pods -o jsonpath={.items[*].status.podIP}"))
	if len(pods) != 2 {
		t.Fatalf("want a guarded pod on each node, got %q", pods)
	}
	web := strings.Fields(th.kubectl(t, "-n web get pods -o name"))
	other := strings.Fields(th.kubectl(t, "-n steady get pods -o name"))
	for _, address := range pods {
		for _, pod := range web {
			th.kubectl(t, fmt.Sprintf("-n web exec %s -- /labapp get http://%s:8080/", pod, address))
		}
		for _, pod := range other {
			got := th.kubectl(t, fmt.Sprintf("-n steady exec %s -- /labapp get http://%s:8080/ 2>&1 || true", pod,
				address))
			if !strings.Contains(got, "deadline exceeded") {
				t.Errorf("%s of the namespace steady asked %s, which the policy forbids, and got\n%s", pod, address,
					got)
			}
		}
	}
}

func (th ciliumThread) upgrade(t *testing.T) {
	plan := run(t, th.withNext(t, "upgrade", "--plan")).must(t, 0)
	if want := "cilium " + strings.TrimPrefix(th.from.cilium, "v") + " -> " +
		strings.TrimPrefix(th.to.cilium, "v"); !strings.Contains(plan.stderr, want) {
		t.Errorf("no %q in\n%s", want, plan.stderr)
	}
	pods := th.kubectl(t, "-n steady get pods -o name")
	th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, nil,
		func(flags ...string) *exec.Cmd { return th.withNext(t, "upgrade", flags...) })
	if after := th.kubectl(t, "-n steady get pods -o name"); after != pods {
		t.Errorf("pods of the application were replaced:\n%s\n%s", pods, after)
	}
}

func (th ciliumThread) rollback(t *testing.T) {
	th.move(t, results.Move{From: th.to.Version, To: th.from.Version, Rollback: true}, nil,
		func(flags ...string) *exec.Cmd {
			return th.site(t, "upgrade", append(flags, "--rollback")...)
		})
}

// reset checks what Cilium leaves outside of the places of all networks.
func (th ciliumThread) reset(t *testing.T) {
	th.thread.reset(t)
	const left = `find /sys/fs/bpf -mindepth 1 ! -name '*.debug'; ls -d /var/run/cilium /var/lib/cilium /opt/cni/bin/cilium-cni /etc/sysctl.d/*cilium* 2>/dev/null; grep /run/cilium /proc/mounts
		ip -br link | grep -E 'cilium|lxc'; ip rule | grep -v -E 'lookup (local|main|default)'; ip route show table all | grep cilium; iptables-save | grep CILIUM; tc filter show dev eth0 ingress; true`
	for number := range th.nodes {
		if out := th.on(t, number+1, left); out != "" {
			t.Errorf("host%d still has\n%s", number+1, out)
		}
	}
}
