package precheck

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// weave is a network that kkbundle does not have.
func weave() network.Network {
	return network.Network{
		Name: "weave", Title: "Weave Net", NodeShares: true,
		Ports: []network.Port{
			{Protocol: "udp", Number: 6784, For: "fast path", Caller: network.PeersCall},
			{Protocol: "tcp", Number: 6783, For: "gossip", Caller: network.MembersCall, Maybe: true},
			{Protocol: "tcp", Number: 6782, For: "one node's", Some: true},
		},
		Listeners: []string{"weaver"},
		Interfaces: []network.Interface{
			{Name: "weave", Traits: network.Carries | network.Telling}, {Name: "vethwe*", Traits: network.Carries},
		},
		Modules:      []string{"vport_vxlan"},
		Kernels:      []network.Kernel{{Before: []int{2, 8}, Least: "3.8"}, {Least: "5.20", RHEL8: 900}},
		KernelSource: "Weave's page of requirements",
		Kubernetes:   &network.Kubernetes{Least: []int{1, 40}, Why: "it uses what 1.40 has", Source: "its notes"},
		Configs:      []string{"10-weave.conflist"},
	}
}

// TestNewNetwork: every check asks the table, so a network that is added there is one for all of them.
func TestNewNetwork(t *testing.T) {
	t.Parallel()
	known := append(network.All(), weave())
	c := (&manifest.Cluster{CNI: manifest.CNI{Type: "weave", IPv4MaskSize: 24}}).WithDefaults()
	c.Kubernetes.Version = "v1.34.3"
	host := Host{Host: manifest.Host{Name: "node1", Roles: []manifest.Role{manifest.RoleWorker, manifest.RoleCluster}}}

	probe := probeFor(known, c, host)
	if !slices.Contains(probe.Ports, 6783) || !slices.Contains(probe.UDPPorts, 6784) ||
		slices.Contains(probe.Ports, 6782) || !slices.Contains(probe.Modules, "vport_vxlan") {
		t.Errorf("the host is asked for %+v", probe)
	}
	taken := []node.Port{{Network: "udp", Port: 6784, By: "weaver"}, {Network: "tcp", Port: 6783, By: "other"}}
	facts := &node.Facts{
		Kernel: "4.18.0-553.el8.x86_64", Ports: taken,
		Modules:    map[string]node.Module{"vport_vxlan": node.ModuleMissing},
		Interfaces: []node.Interface{{Name: "weave"}, {Name: "vethwe1"}, {Name: "eth0"}},
		Firewalls:  []string{"firewalld"},
		Paths: []node.Path{{Path: cniDir, Type: "dir", Entries: []string{
			"10-weave.conflist",
			"10-flannel.conflist",
		}}},
	}
	s := &Subject{Host: host, Facts: facts, Cluster: c, Input: &Input{}, known: known, fleet: &fleet{}}
	for name, one := range map[string]struct {
		rule func(*Subject) Finding
		want State
		has  string
	}{
		"kernel":    {hasNetworkKernel, Failed, "4.18.0-553.el8.x86_64, needed is 5.20"},
		"modules":   {hasModules, Failed, "vport_vxlan"},
		"leftovers": {hasNoOldNetwork, Failed, "weave"},
		"configs":   {hasNoForeignCNI, Failed, "10-weave.conflist"},
		"known":     {isKnownPlugin, Passed, "weave"},
		"shares":    {holdsNodes, Passed, "0 nodes"},
		"firewall":  {hasNoFirewall, Failed, "firewalld"},
	} {
		got := one.rule(s)
		if got.State != one.want || !strings.Contains(got.Text, one.has) {
			t.Errorf("%s: %+v, want %v with %q", name, got, one.want, one.has)
		}
	}
	if got := hasNoOldNetwork(s); strings.Contains(got.Text, "vethwe1") {
		t.Errorf("an interface that tells nothing: %+v", got)
	}
	fix := firewallFix(s)
	for _, want := range []string{
		"--zone=trusted --add-interface=weave --add-interface=vethwe+",
		"--add-port=6783/tcp --add-port=6784/udp --add-port=6782/tcp",
	} {
		if !strings.Contains(fix, want) {
			t.Errorf("%q is not in %q", want, fix)
		}
	}

	facts.Ports = append(facts.Ports, node.Port{Network: "tcp", Port: 10250, Free: true})
	if got := hasPorts(s); got.State != Failed || !strings.Contains(got.Text, "6783/tcp (weave) is used by other") ||
		!strings.Contains(got.Text, "6784/udp (weave) is used by weaver") {
		t.Errorf("a new host: %+v", got)
	}
	facts.Paths = append(facts.Paths, node.Path{Path: MarkerDir, Type: "dir", Entries: []string{"weave"}})
	if got := hasPorts(s); got.State != Failed || strings.Contains(got.Text, "weaver") {
		t.Errorf("a node of ours, whose own program has the port: %+v", got)
	}
	if got := hasNoForeignCNI(s); got.State != Failed || strings.Contains(got.Text, "weave") {
		t.Errorf("a node of ours, with the network's own file: %+v", got)
	}
	c.CNI.Version = "v2.7.0"
	if got := hasNetworkKernel(s); got.State != Passed {
		t.Errorf("an earlier release takes the kernel: %+v", got)
	}

	checks := checksFor(known)
	of := func(id string) Check {
		i := slices.IndexFunc(checks, func(c Check) bool { return c.ID == id })
		if i < 0 {
			t.Fatalf("there is no check %s", id)
		}
		return checks[i]
	}
	if one := of("weave"); one.Rule(s).State != Failed || one.Title != "this Kubernetes can have Weave Net" ||
		one.Source != "its notes" {
		t.Errorf("%+v", one)
	}
	if !strings.Contains(of("plugin").Fix, "weave") ||
		!strings.Contains(of("links").Varies, "Calico's 179, Hybridnet's 5473, Weave Net's 6783") ||
		!strings.Contains(of("kernel-network").Source, "Weave's page") {
		t.Error("what is said of checks does not name the network")
	}
}

// TestNewNetworkLinks: hosts try the ports that each other's pods use.
func TestNewNetworkLinks(t *testing.T) {
	t.Parallel()
	c := &manifest.Cluster{CNI: manifest.CNI{Type: "weave"}}
	var hosts []Host
	for name, role := range map[string]manifest.Role{"cp1": manifest.RoleControlPlane, "node1": manifest.RoleWorker} {
		h := manifest.Host{Name: name, Roles: []manifest.Role{role, manifest.RoleCluster}}
		hosts = append(hosts, Host{Host: h, Facts: &node.Facts{}})
	}
	hosts[0].InternalIPv4, hosts[1].InternalIPv4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var tried []string
	for _, l := range links(append(network.All(), weave()), c, hosts) {
		if strings.HasPrefix(l.For, "weave") {
			tried = append(tried, l.From+" "+l.To+" "+l.For)
			if l.Maybe != (l.Port == 6783) {
				t.Errorf("%+v", l)
			}
		}
	}
	slices.Sort(tried)
	if got := strings.Join(tried,
		"; "); got != "cp1 node1 weave (fast path); node1 cp1 weave (fast path); node1 cp1 weave (gossip)" {
		t.Errorf("tried: %s", got)
	}
}
