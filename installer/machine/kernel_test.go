package machine

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestParametersWinAtBoot: many hosts have a link 99-sysctl.conf to /etc/sysctl.conf, and the last file of a
// parameter wins.
func TestParametersWinAtBoot(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"/etc/sysctl.d/99-sysctl.conf", EarlierSysctlPath} {
		if SysctlPath <= file {
			t.Errorf("%s is read before %s", SysctlPath, file)
		}
	}
}

// TestParametersThatTheKubeletChecks: a kubelet that protects the kernel's defaults does not start with others.
func TestParametersThatTheKubeletChecks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"kubernetes: {version: v1.34.3}":                                          false,
		"kubernetes: {version: v1.34.3, security: hardened}":                      true,
		"kubernetes: {version: v1.34.3, kubelet: {protectKernelDefaults: true}}":  true,
		"kubernetes: {version: v1.34.3, kubelet: {protectKernelDefaults: false}}": false,
	} {
		got := slices.ContainsFunc(parameters(tasktest.Cluster(t, text)), func(p parameter) bool {
			return p.key == "vm.overcommit_memory" && p.value == 1
		})
		if got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}
