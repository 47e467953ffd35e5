package precheck_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// resultOf returns the result of a check on a host.
func resultOf(t *testing.T, in precheck.Input, id, host string) precheck.Result {
	t.Helper()
	list := precheck.Evaluate(in).Results
	i := slices.IndexFunc(list, func(r precheck.Result) bool { return r.ID == id && r.Host == host })
	if i < 0 {
		t.Fatalf("%s has no result of %s", host, id)
	}
	return list[i]
}

// TestFirewallRemedyNamesNetworks holds that the remedy opens a firewall for pods and for the ports of the host's
// roles and pod network: open ports alone let no packet of a pod through.
func TestFirewallRemedyNamesNetworks(t *testing.T) {
	t.Parallel()
	const sources = "firewall-cmd --permanent --zone=trusted --add-source=10.233.64.0/18 --add-source=10.233.0.0/18; "
	for network, want := range map[manifest.NetworkType][]string{
		manifest.NetworkFlannel: {
			"--zone=trusted --add-interface=cni0 --add-interface=flannel.1",
			"--add-port=8472/udp",
		},
		manifest.NetworkCalico: {
			"--add-interface=cali+", "--add-port=179/tcp", "--add-port=4789/udp",
			"--add-port=5473/tcp",
		},
		manifest.NetworkCilium:  {"--add-interface=lxc+", "--add-port=4240/tcp", "--add-port=8472/udp"},
		manifest.NetworkKubeOVN: {"--add-interface=ovn0", "--add-port=6081/udp"},
		manifest.NetworkHybridnet: {
			"--add-interface=hybr+", "--add-port=8472/udp", "--add-port=5473/tcp", "--add-port=9898/tcp",
		},
		manifest.NetworkNone: {"--add-port=10250/tcp"},
	} {
		in := good(t)
		in.Cluster.CNI.Type = network
		for i := range in.Hosts {
			in.Hosts[i].Facts.Firewalls = []string{"firewalld"}
		}
		for host, port := range map[string]string{"cp1": "--add-port=6443/tcp", "w1": "--add-port=10250/tcp"} {
			fix := resultOf(t, in, "firewall", host).Fix
			for _, one := range append([]string{sources, port, "firewall-cmd --reload; or switch the firewall off"},
				want...) {
				if !strings.Contains(fix, one) {
					t.Errorf("%s on %s: %q is not in %s", network, host, one, fix)
				}
			}
			if strings.Contains(fix, "11021") {
				t.Errorf("%s on %s: a port that no other host calls is opened: %s", network, host, fix)
			}
			// firewalld 1.3.3: "argument --add-masquerade: not allowed with argument --add-port", exit code 2.
			for command := range strings.SplitSeq(fix, "; ") {
				kinds := map[string]bool{}
				for word := range strings.FieldsSeq(command) {
					if option, _, _ := strings.Cut(word, "="); strings.HasPrefix(option, "--add-") {
						kinds[option] = true
					}
				}
				if len(kinds) > 1 {
					t.Errorf("%s on %s: firewall-cmd would refuse %s", network, host, command)
				}
			}
		}
	}
	in := good(t)
	in.Hosts[1].Facts.Firewalls = []string{"ufw", "nftables"}
	fix := resultOf(t, in, "firewall", "w1").Fix
	for _, one := range []string{
		"ufw route allow from 10.233.64.0/18", "ufw allow 8472/udp",
		"accept 10.233.64.0/18, 10.233.0.0/18 in the chains input and forward of nftables",
	} {
		if !strings.Contains(fix, one) {
			t.Errorf("%q is not in %s", one, fix)
		}
	}
}

// TestFirewallThatIsOpen asserts that an opened firewall is no finding, and that the remedy names only missing
// networks, interfaces and ports.
func TestFirewallThatIsOpen(t *testing.T) {
	t.Parallel()
	result := func(change func(*node.Facts)) precheck.Result {
		in := good(t)
		change(in.Hosts[1].Facts)
		return resultOf(t, in, "firewall", "w1")
	}
	zones := func(f *node.Facts) {
		f.Firewalls = []string{"firewalld"}
		f.FirewallZones = []node.FirewallZone{
			{
				Name: "internal", Interfaces: []string{f.Interfaces[0].Name},
				Ports: []string{"10000-11000/tcp", "8472/udp"},
			},
			{Name: "public", Default: true},
			{
				Name: "trusted", Target: "ACCEPT", Interfaces: []string{"cni0", "flannel.1", "flannel-v6.1"},
				Sources: []string{"10.233.0.0/16"},
			},
		}
	}
	if r := result(zones); !r.OK {
		t.Errorf("an open firewalld: %s; %s", r.Found, r.Fix)
	}
	r := result(func(f *node.Facts) {
		zones(f)
		f.FirewallZones[0].Ports, f.FirewallZones[2].Sources = []string{"10250/udp", "8472/udp"},
			[]string{"10.233.64.0/18"}
	})
	const fix = "firewall-cmd --permanent --zone=trusted --add-source=10.233.0.0/18; firewall-cmd --permanent --zone=internal --add-port=10250/tcp; firewall-cmd --reload; or switch the firewall off"
	if r.OK || r.Found != "firewalld does not have 10.233.0.0/18, 10250/tcp" || r.Fix != fix {
		t.Errorf("found %s, remedy %s", r.Found, r.Fix)
	}
	r = result(func(f *node.Facts) {
		zones(f)
		f.FirewallZones[0] = node.FirewallZone{Name: "x;reboot", Interfaces: f.FirewallZones[0].Interfaces}
	})
	if r.OK || strings.Contains(r.Fix, "reboot") {
		t.Errorf("a zone that no firewalld has is part of the remedy %s", r.Fix)
	}
	rules := func(f *node.Facts) {
		f.Firewalls = []string{"ufw"}
		f.UFWRules = []string{
			"allow 22/tcp", "allow from 10.233.64.0/18", "route allow from 10.233.64.0/18",
			"route allow to 10.233.64.0/18",
			"allow from 10.233.0.0/18", "route allow from 10.233.0.0/18", "route allow to 10.233.0.0/18", "allow 10250",
			"allow 8472/udp",
		}
	}
	if r := result(rules); !r.OK {
		t.Errorf("an open ufw: %s; %s", r.Found, r.Fix)
	}
	r = result(func(f *node.Facts) { rules(f); f.UFWRules = f.UFWRules[:8] })
	if r.OK || r.Fix != "ufw allow 8472/udp; or switch the firewall off" {
		t.Errorf("found %s, remedy %s", r.Found, r.Fix)
	}
	if r := result(func(f *node.Facts) { rules(f); f.Firewalls = append(f.Firewalls, "nftables") }); r.OK ||
		r.Found != "nftables" || strings.Contains(r.Fix, "ufw") {
		t.Errorf("nftables.service beside an open ufw: found %s, remedy %s", r.Found, r.Fix)
	}
}

// TestClockMinutesOffBlocks holds that a clock with which a node cannot join blocks, unless the installation itself
// sets it.
func TestClockMinutesOffBlocks(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		off     time.Duration
		servers []string
		want    precheck.Level
	}{
		{5 * time.Second, nil, precheck.Warn},
		{3 * time.Minute, nil, precheck.Block},
		{-3 * time.Minute, nil, precheck.Block},
		{3 * time.Minute, []string{"10.0.0.1"}, precheck.Warn},
	} {
		in := good(t)
		in.Cluster.Time.Servers = one.servers
		in.Hosts[1].Facts.Clock += int64(one.off)
		if r := resultOf(t, in, "clock", "w1"); r.OK || r.Level != one.want {
			t.Errorf("%s off, servers %v: ok %v, level %s; want %s", one.off, one.servers, r.OK, r.Level, one.want)
		}
	}
}
