package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// withHybridnet gives a scenario the network Hybridnet. Its interface is named, for the hosts' default route leads
// nowhere.
func withHybridnet(s scenario) scenario {
	s.with, s.given = []software.Extra{software.Hybridnet}, software.HybridnetGiven()
	s.edit = func(t *testing.T, dir string) {
		t.Helper()
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "cni: {type: flannel}", "cni: {type: hybridnet, version: "+
			software.HybridnetVersion+", values: [hybridnet.yaml]}")
		write(t, dir, map[string]string{
			"hybridnet.yaml": "daemon: {preferVxlanInterfaces: eth0, preferVlanInterfaces: eth0, preferBGPInterfaces: eth0}\n",
		})
	}
	return s
}

// TestHybridnet has the precheck refuse a host without the modules and the default route that Hybridnet's daemon needs.
// The kernel of the lab's hosts has no queues of the kind prio and no filters that change packets.
func TestHybridnet(t *testing.T) {
	th := start(t, withHybridnet(scenario{hosts: 1, noCluster: true}))
	th.makeBundle(t)
	r := run(t, th.site(t, "precheck")).must(t, 12)
	for _, want := range []string{"missing: sch_prio, act_pedit", "there is a default route"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
}

// TestVMHybridnet is a cluster of two machines with Hybridnet. Its Kubernetes is one for which Hybridnet enforces no
// policies.
func TestVMHybridnet(t *testing.T) {
	v := startVM(t, withHybridnet(scenario{hosts: 2}), 3072, "")
	v.nodes = 2
	steps(t, []step{
		{"build", v.makeBundle},
		{"hosts without a default route are refused", v.withoutRoute},
		{"install ends verified", v.installs},
		{"pods reach each other and services on both nodes", v.cluster},
		{"a rerun changes nothing", v.rerun},
		{"a node is deleted, and has nothing of the network", v.leavesHybridnet},
		{"the node is added again, and pods reach each other", v.returnsToHybridnet},
		{"reset leaves what was there", func(t *testing.T) {
			v.resets(t)
			v.nothingOfHybridnet(t, 1)
			v.nothingOfHybridnet(t, 2)
		}},
		{"no packet left the machines' network", v.packets},
	})
}

// withoutRoute runs precheck before and after the hosts get a default route, which leads nowhere.
func (v *virtual) withoutRoute(t *testing.T) {
	r := run(t, v.site(t, "precheck")).must(t, 12)
	if !strings.Contains(r.stdout, "there is a default route") {
		t.Errorf("the default route is not missed:\n%s", r.stdout)
	}
	for _, h := range v.lab.Hosts {
		v.on(t, h.Number, "ip route add default dev lo scope link src "+h.Address)
	}
	v.pristine = v.traces(t)
	run(t, v.site(t, "precheck")).must(t, 0)
}

func (v *virtual) leavesHybridnet(t *testing.T) {
	r := run(t, v.deletion(t, "host2")).must(t, 0)
	t.Logf("worker deleted: %s\n%s", r.took.Round(time.Second), r.stderr)
	v.nothingOfHybridnet(t, 2)
}

func (v *virtual) returnsToHybridnet(t *testing.T) {
	r := run(t, v.site(t, "nodes add", "--yes")).must(t, 0)
	t.Logf("worker added: %s\n%s", r.took.Round(time.Second), r.stderr)
	v.kubectl(t, "-n web rollout restart deployment/web") // which were all on the first node
	v.kubectl(t, "-n web rollout status deployment/web --timeout=10m")
	v.cluster(t)
}

// nothingOfHybridnet checks that a host has nothing of Hybridnet: files, interfaces, rules and tables of routes, rules
// of the packet filter. The kernel counts the sets of a kind.
func (v *virtual) nothingOfHybridnet(t *testing.T, number int) {
	t.Helper()
	const left = `ls -d /opt/cni/bin/hybridnet /run/cni /etc/cni/net.d/*hybridnet* 2>/dev/null
		ip -br link | grep -E 'hybr|vxlan'; (ip rule; ip -6 rule) | grep -v -E 'lookup (local|main|default)'
		(ip route show table all; ip -6 route show table all) | grep -E 'table [0-9]|169\.254\.'
		(iptables-save; ip6tables-save) 2>/dev/null | grep -i -E 'hybr|cali'
		grep -H -v '^0$' /sys/module/ip_set_hash_*/refcnt 2>/dev/null; true`
	if out := v.on(t, number, left); out != "" {
		t.Errorf("host%d still has\n%s", number, out)
	}
}
