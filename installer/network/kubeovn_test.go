//go:build linux

package network

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
)

// TestRemoveKubeOVN runs the script twice, in a network namespace with the rules that kube-ovn v1.15.0's daemon has
// without a name. A rule of the host stays.
func TestRemoveKubeOVN(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("needs iptables")
	}
	const inside = `set -e; mount -t tmpfs tmpfs /run
		for p in iptables ip6tables; do
			$p -A OUTPUT -p udp -m udp --dport 6081 -j MARK --set-xmark 0x0; $p -A OUTPUT -p udp -m udp --dport 4789 -j MARK --set-xmark 0x0
			$p -A OUTPUT -p udp -m udp --dport 4789 -j ACCEPT
		done
		"$@"; "$@"
		iptables -S OUTPUT; ip6tables -S OUTPUT`
	const left = "-P OUTPUT ACCEPT\n-A OUTPUT -p udp -m udp --dport 4789 -j ACCEPT\n"
	out, err := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--net", "sh", "-c", inside, "sh"},
		host.Script("remove-kube-ovn.sh", removeKubeOVN)...)...).CombinedOutput()
	if err != nil || string(out) != left+left {
		t.Errorf("%v; left\n%s want\n%s%s", err, out, left, left)
	}
}
