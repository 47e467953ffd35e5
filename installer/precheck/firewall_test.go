package precheck_test

import (
	"slices"
	"strings"
	"testing"
	"time"

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

// TestFirewallRemedyNamesNetworks holds that the remedy opens a firewall for pods and for the ports of the host's roles and pod
// network: open ports alone let no packet of a pod through.
func TestFirewallRemedyNamesNetworks(t *testing.T) {
	t.Parallel()
	const sources = "--zone=trusted --add-source=10.233.64.0/18 --add-source=10.233.0.0/18"
	for network, want := range map[manifest.NetworkType][]string{
		manifest.NetworkFlannel: {"--add-interface=cni0 --add-interface=flannel.1", "--add-port=8472/udp"},
		manifest.NetworkCalico:  {"--add-interface=cali+", "--add-port=179/tcp", "--add-port=4789/udp", "--add-port=5473/tcp"},
		manifest.NetworkCilium:  {"--add-interface=lxc+", "--add-port=4240/tcp", "--add-port=8472/udp"},
		manifest.NetworkKubeOVN: {"--add-interface=ovn0", "--add-port=6081/udp"},
		manifest.NetworkNone:    {"--add-port=10250/tcp"},
	} {
		in := good(t)
		in.Cluster.CNI.Type = network
		for i := range in.Hosts {
			in.Hosts[i].Facts.Firewalls = []string{"firewalld"}
		}
		for host, port := range map[string]string{"cp1": "--add-port=6443/tcp", "w1": "--add-port=10250/tcp"} {
			fix := resultOf(t, in, "firewall", host).Fix
			for _, one := range append([]string{sources, port, "--add-masquerade", "firewall-cmd --reload"}, want...) {
				if !strings.Contains(fix, one) {
					t.Errorf("%s on %s: %q is not in %s", network, host, one, fix)
				}
			}
		}
	}
	in := good(t)
	in.Hosts[1].Facts.Firewalls = []string{"ufw", "nftables"}
	fix := resultOf(t, in, "firewall", "w1").Fix
	for _, one := range []string{"ufw route allow from 10.233.64.0/18", "ufw allow 8472/udp", "accept 10.233.64.0/18, 10.233.0.0/18 in the chains input and forward of nftables"} {
		if !strings.Contains(fix, one) {
			t.Errorf("%q is not in %s", one, fix)
		}
	}
}

// TestClockMinutesOffBlocks holds that a clock with which a node cannot join blocks, unless the installation itself sets it.
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
