package e2e

import (
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
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

// A ciliumThread is a cluster with Cilium, or one whose Cilium goes to the next minor release and back.
type ciliumThread struct{ policed }

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
	th := ciliumThread{policed{newUpgraded(t, moved{
		name: name, hosts: 2, groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with: append(releases, software.Kubernetes135),
		from: side{
			KubernetesRelease: release, containerd: software.ContainerdVersion,
			cilium: software.CiliumVersion, values: "cilium.yaml",
		},
		to: side{
			KubernetesRelease: release, containerd: software.ContainerdVersion,
			cilium: software.CiliumNextVersion, values: "cilium.yaml",
		},
	})}}
	write(t, th.dir, map[string]string{"cilium.yaml": ciliumValues})
	th.mountBPF(t)
	th.pristine = th.traces(t)
	return th
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
