package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A calicoThread is a cluster with Calico, or one whose Calico goes to the next minor release and back.
type calicoThread struct{ policed }

// TestCalico installs two nodes with Calico, adds a node, deletes it, and removes all. The programs, their files and
// the charts are genuine, and have to be given.
func TestCalico(t *testing.T) {
	own, calico := software.OwnRelease(), software.CalicoReleases()[software.Calico332]
	th := calicoThread{policed{newUpgraded(t, moved{
		hosts: 3, groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with: []software.Extra{software.Calico332}, given: calico.Given(),
		from: side{KubernetesRelease: own, containerd: software.ContainerdVersion, calico: calico.Version},
	})}}
	th.pristine = th.traces(t)
	steps(t, []step{
		{"hosts without the kernel's BPF are refused", th.withoutBPF},
		{"a cluster", th.installed},
		{
			"pods reach each other and services on both nodes, and a policy forbids",
			func(t *testing.T) { th.works(t, th.from) },
		},
		{"a rerun changes nothing", th.rerun},
		{"status says healthy", th.looks},
		{"a node is added, and the policy holds there", th.grows},
		{"a node is deleted, and its addresses are free", th.shrinks},
		{"reset leaves nothing", th.reset},
		{"no packet left the hosts' network", th.packets},
	})
}

// bgpValues make nodes tell each other the routes to their pods, which then need no tunnel.
const bgpValues = `installation:
  calicoNetwork:
    bgp: Enabled
    ipPools:
      - {cidr: 10.233.64.0/18, encapsulation: None, natOutgoing: Enabled, nodeSelector: all()}
      - {cidr: "fd00:233:64::/56", encapsulation: None, natOutgoing: Enabled, nodeSelector: all()}
`

// TestCalicoBGP installs two nodes of both families whose bird announces the pods' networks, with rules of nftables.
func TestCalicoBGP(t *testing.T) {
	own, calico := software.OwnRelease(), software.CalicoReleases()[software.Calico332]
	th := calicoThread{policed{newUpgraded(t, moved{
		hosts: 2, groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with: []software.Extra{software.Calico332}, given: calico.Given(),
		from: side{
			KubernetesRelease: own, containerd: software.ContainerdVersion, calico: calico.Version,
			values: "bgp.yaml",
		},
	})}}
	write(t, th.dir, map[string]string{"bgp.yaml": bgpValues})
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), "  kubelet: {failCgroupV1: false}\n", `  kubelet: {failCgroupV1: false}
  podCIDR: 10.233.64.0/18,fd00:233:64::/56
  serviceCIDR: 10.233.0.0/18,fd00:233::/112
  proxyMode: nftables
`)
	th.mountBPF(t)
	th.pristine = th.traces(t)
	steps(t, []step{
		{"a cluster of two families", func(t *testing.T) { th.makeBundle(t); th.installed(t) }},
		{"nodes have routes from each other, and no tunnel", th.announces},
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

// announces waits for the routes, which come after the pods are there.
func (th calicoThread) announces(t *testing.T) {
	for number := range th.nodes {
		for _, family := range []string{"-4", "-6"} {
			th.waitFor(t, time.Minute, "a route of bird's", number+1, "ip "+family+
				" route show proto bird | grep via || { ip "+family+" route; false; }")
		}
		if links := th.on(t, number+1, "ip -br link"); strings.Contains(links, "vxlan") {
			t.Errorf("host%d has\n%s", number+1, links)
		}
	}
}

// TestUpgradeCalico takes Calico to its next minor release and back, under running pods and while an application
// answers. Kubernetes is of the newest minor release that both are for, and stays.
func TestUpgradeCalico(t *testing.T) {
	release, all := software.KubernetesReleases()[software.Kubernetes135], software.CalicoReleases()
	from, to := all[software.Calico331], all[software.Calico332]
	runs := side{KubernetesRelease: release, containerd: software.ContainerdVersion, calico: from.Version}
	goes := runs
	goes.calico = to.Version
	th := calicoThread{policed{newUpgraded(t, moved{
		name:  "1 control plane, 2 nodes; Calico " + from.Version + " to " + to.Version,
		hosts: 2, groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with:  []software.Extra{software.Calico331, software.Calico332, software.Kubernetes135},
		given: append(from.Given(), to.Given()...), from: runs, to: goes,
	})}}
	th.pristine = th.traces(t)
	th.mountBPF(t)
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"Calico goes to its next minor release, and the application answers", th.upgrade},
		{"everything works with the next release", func(t *testing.T) { th.works(t, th.to) }},
		{"a rerun changes nothing", th.again},
		{"Calico goes back, and the application answers", th.rollback},
		{"everything works with the first release", func(t *testing.T) { th.works(t, th.from) }},
		{"reset leaves nothing", th.reset},
		{"no packet left the hosts' network", th.packets},
	})
}

// withoutBPF runs precheck before and after the hosts get /sys/fs/bpf: it refuses the nodes, then passes.
func (th calicoThread) withoutBPF(t *testing.T) {
	th.makeBundle(t)
	r := run(t, th.site(t, "precheck")).must(t, 12)
	if !strings.Contains(r.stdout, "host1, host2  missing: /sys/fs/bpf") {
		t.Errorf("want the nodes and the directory that they lack, got\n%s", r.stdout)
	}
	th.mountBPF(t)
	run(t, th.site(t, "precheck")).must(t, 0)
}

// grows adds the third host as a worker.
func (th calicoThread) grows(t *testing.T) {
	groups := twoNodes()
	groups["kube_worker"] = []int{1, 2, 3}
	if err := th.lab.WriteInventory(th.inventory, groups); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.site(t, "nodes add", "--yes")).must(t, 0)
	t.Logf("worker added: %s\n%s", r.took.Round(time.Second), r.stderr)
	th.nodes = 3
	th.kubectl(t, "-n guarded scale deployment/guarded --replicas=3")
	th.kubectl(t, "-n guarded rollout status deployment/guarded --timeout=5m")
	th.works(t, th.from)
}

// shrinks deletes the third host. The network's block of addresses of it is free after a while.
func (th calicoThread) shrinks(t *testing.T) {
	th.kubectl(t, "-n guarded scale deployment/guarded --replicas=2")
	r := run(t, th.deletion(t, "host3")).must(t, 0)
	t.Logf("worker deleted: %s\n%s", r.took.Round(time.Second), r.stderr)
	if err := th.lab.WriteInventory(th.inventory, twoNodes()); err != nil {
		t.Fatal(err)
	}
	th.nodes = 2
	th.waitFor(t, 5*time.Minute, "no block of addresses is host3's", 1,
		"! KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf get blockaffinities.crd.projectcalico.org -o yaml | grep -q 'node: host3'")
	th.nothingOf(t, 3)
}

// reset checks what Calico leaves outside of the places of all networks.
func (th calicoThread) reset(t *testing.T) {
	th.thread.reset(t)
	for number := range th.nodes {
		th.nothingOf(t, number+1)
	}
}

// nothingOf checks that nothing of Calico is left on a host.
func (th calicoThread) nothingOf(t *testing.T, number int) {
	t.Helper()
	const left = `ls -d /var/lib/calico /run/calico /run/nodeagent /var/log/calico /etc/calico /opt/cni/bin/calico* /etc/cni/net.d/*calico* /usr/libexec/kubernetes 2>/dev/null
		find /sys/fs/bpf -mindepth 1 ! -name '*.debug'; grep calico /proc/mounts
		ip -br link | grep -E 'cali|tunl|vxlan|wireguard|wg-v6'; (ip rule; ip -6 rule) | grep -v -E 'lookup (local|main|default)'
		(ip route show table all; ip -6 route show table all) | grep -E 'cali|proto (80|bird)|blackhole'
		(iptables-save; ip6tables-save) | grep -E 'cali|CALI'; nft list ruleset | grep -i cali; ipset list -name 2>/dev/null | grep cali; true`
	if out := th.on(t, number, left); out != "" {
		t.Errorf("host%d still has\n%s", number, out)
	}
}
