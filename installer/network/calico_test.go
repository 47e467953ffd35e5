//go:build linux

package network

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
)

// said is a kubectl that prints itself.
type said string

func (s said) Kubectl(context.Context, ...string) ([]byte, error) { return []byte(s), nil }

// The error of a network that is not available has the operator's messages.
func TestCalicoIsAvailable(t *testing.T) {
	t.Parallel()
	const condition = `{"type":"%s","status":"%s","message":"%s"}`
	status := func(available, degraded string) said {
		return said(fmt.Sprintf(`{"status":{"conditions":[`+condition+","+condition+`]}}`, "Available", available, "",
			"Degraded", degraded, "Pod calico-system/csi-node-driver-x has crash looping container: calico-csi"))
	}
	if err := isAvailable(t.Context(), status("True", "False")); err != nil {
		t.Error(err)
	}
	err := isAvailable(t.Context(), status("False", "True"))
	if err == nil || !strings.Contains(err.Error(), "not Available; Degraded: Pod calico-system/csi-node-driver-x has") {
		t.Errorf("want the pod, got %v", err)
	}
	for _, out := range []said{"", "{}", "[]"} {
		if err := isAvailable(t.Context(), out); err == nil {
			t.Errorf("%q: no error", out)
		}
	}
}

// TestRemoveCalico runs the script with routes as Felix v3.32 and BIRD make them, in a network namespace. Those of the
// host stay, also if it has a BIRD of its own.
func TestRemoveCalico(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const routes = `ip link set lo up; ip route add blackhole 10.9.0.0/26; ip route add 10.8.0.0/26 dev lo proto static
		ip route add blackhole 10.233.64.0/26 proto 80; ip route add 10.233.65.0/26 dev lo proto 80; ip -6 route add blackhole fd00:233::/122 proto 80
		ip route add blackhole 10.233.66.0/26 proto 12; ip -6 route add blackhole fd00:233:1::/122 proto 12`
	for status, left := range map[string]string{
		"1": "10.8.0.0/26 dev lo proto static scope link \nblackhole 10.9.0.0/26 \n",
		"0": "10.8.0.0/26 dev lo proto static scope link \nblackhole 10.9.0.0/26 \nblackhole 10.233.66.0/26 proto bird \n" +
			"blackhole fd00:233:1::/122 dev lo proto bird metric 1024 pref medium\n",
	} {
		bin := t.TempDir()
		pidof := []byte("#!/bin/sh\nexit " + status + "\n") // whether the host has a BIRD
		if err := os.WriteFile(filepath.Join(bin, "pidof"), pidof, 0o700); err != nil {
			t.Fatal(err)
		}
		inside := `set -e; mount -t bpf bpf /sys/fs/bpf; mkdir -p /sys/fs/bpf/calico/xdp /sys/fs/bpf/tc/globals/cali_nat /sys/fs/bpf/other
			nft add table arp calico-arp; nft add table arp other; ` + routes + `; "$@"; "$@"
			ip route; ip -6 route; find /sys/fs/bpf -mindepth 1 ! -name '*.debug'; nft list tables`
		left += "/sys/fs/bpf/other\ntable arp other\n"
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--net", "sh", "-c", inside, "sh"},
			host.Script("remove-calico.sh", removeCalico)...)...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != left {
			t.Errorf("pidof says %s: %v; left\n%s want\n%s", status, err, out, left)
		}
	}
}
