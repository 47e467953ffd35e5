//go:build linux

package network

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
)

// TestRemoveCilium runs the script with a BPF file system and rules of routes of its own, in namespaces. The kernel
// may have made *.debug.
func TestRemoveCilium(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// rules prints the rules and routes of a state; Cilium's are those of its agent v1.19.6.
	const rules = `for f in -4 -6; do ip $f rule; ip $f route show table 2004 || :; ip $f route show table 2005 || :; done 2>/dev/null`
	const agent = `for f in -4 -6; do
		ip $f rule add pref 100 lookup local proto kernel && ip $f rule del pref 0 lookup local
		ip $f rule add pref 9 fwmark 0x200/0xf00 lookup 2004 proto kernel; ip $f rule add pref 10 fwmark 0xa00/0xf00 lookup 2005 proto kernel
		ip $f route add local default dev lo table 2004; ip $f route add default dev cilium_host table 2005
	done; mkdir -p /sys/fs/bpf/cilium/devices /sys/fs/bpf/tc/globals/cilium_policy`
	for name, c := range map[string]struct{ pins, left string }{
		"its own": {"", ""},
		"others'": {
			"mkdir /sys/fs/bpf/tc/globals/other /sys/fs/bpf/other",
			"/sys/fs/bpf/other\n/sys/fs/bpf/tc\n/sys/fs/bpf/tc/globals\n/sys/fs/bpf/tc/globals/other\n",
		},
	} {
		const inside = `set -e; mount -t bpf bpf /sys/fs/bpf; ip link set lo up; ip link add cilium_host type veth peer name cilium_net; ip link set cilium_host up
			pins=$0; ` + rules + ` >/tmp/before; ` + agent + `; eval "$pins"; "$@"; "$@"; ` + rules + ` >/tmp/after
			diff /tmp/before /tmp/after; find /sys/fs/bpf -mindepth 1 ! -name '*.debug' | sort`
		args := append([]string{"--mount", "--net", "sh", "-c", "mount -t tmpfs none /tmp && " + inside, c.pins},
			host.Script("remove-cilium.sh", removeCilium)...)
		out, err := exec.CommandContext(t.Context(), "unshare", args...).CombinedOutput()
		if err != nil || string(out) != c.left {
			t.Errorf("%s: %v; left %q, want %q", name, err, out, c.left)
		}
	}
}
