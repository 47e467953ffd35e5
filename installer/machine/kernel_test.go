package machine

import "testing"

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
