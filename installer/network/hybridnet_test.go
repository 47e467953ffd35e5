//go:build linux

package network

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
)

// TestRemoveHybridnet runs the script twice, in a network namespace with the rules, tables of routes and interface that
// Hybridnet v0.8.8's daemon makes. Those of others stay.
func TestRemoveHybridnet(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const inside = `set -e; mount -t tmpfs tmpfs /run; mkdir /run/cni; : >/run/cni/hybridnet.sock
		ip link set lo up; ip link add eth0 type veth peer name far; ip link set eth0 up; ip addr add 10.0.0.3/24 dev eth0
		ip link add eth0.vxlan4 type vxlan id 4 dev eth0 dstport 8472; ip link add own type vxlan id 5 dstport 4789; ip link set eth0.vxlan4 up
		for f in -4 -6; do
			pods=10.233.64.0/18; own=10.9.0.0/16; [ $f = -4 ] || { pods=fd00:1::/64; own=fd00:9::/64; }
			ip $f rule add from all lookup 39999 priority 1
			ip $f rule add from all lookup 40000 priority 2
			ip $f rule add from all fwmark 0x20/0x20 lookup 40001 priority 3
			ip $f rule add from $pods fwmark 0/0x4040 lookup 10000 priority 4
			ip $f rule add from $own lookup 10001 priority 5
			ip $f rule add from all lookup 100 priority 6
			ip $f route add $pods dev eth0.vxlan4 table 40000
			ip $f route add throw $own table 10000
			ip $f route add default dev eth0.vxlan4 table 40001
			ip $f route add $own dev lo table 10001
		done
		ip route add 169.254.1.1 dev lo scope link
		"$@"; "$@"
		ip rule; ip -6 rule; ip -br link | cut -d ' ' -f 1; ip route show table 10001; ip -4 route show dev lo
		for f in -4 -6; do for table in 39999 40000 40001 10000; do ip $f route show table $table 2>/dev/null || true; done; done
		find /run -mindepth 1`
	const left = "0:\tfrom all lookup local\n5:\tfrom 10.9.0.0/16 lookup 10001\n6:\tfrom all lookup 100\n" +
		"32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n" +
		"0:\tfrom all lookup local\n5:\tfrom fd00:9::/64 lookup 10001\n6:\tfrom all lookup 100\n32766:\tfrom all lookup main\n" +
		"lo\nfar@eth0\neth0@far\nown\n10.9.0.0/16 dev lo scope link \n"
	out, err := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--net", "sh", "-c", inside, "sh"},
		host.Script("remove-hybridnet.sh", removeHybridnet)...)...).CombinedOutput()
	if err != nil || string(out) != left {
		t.Errorf("%v; left\n%s want\n%s", err, out, left)
	}
}
