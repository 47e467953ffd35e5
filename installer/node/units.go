package node

import (
	"slices"
	"strings"
)

// Services returns the services that make a machine a node, under all their names.
func Services() []string {
	return []string{
		"kubelet.service", "containerd.service", "docker.service", "cri-docker.service", "crio.service", "k3s.service",
		"k3s-agent.service",
	}
}

// BootUnits returns the services that a node needs after a boot, under all their names.
func BootUnits() []string {
	return append(
		Services(), "etcd.service",
		"chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntp.service", "ntpd.service",
		"ntpsec.service",
	)
}

// Disabled returns those of some units that run and that nothing starts at boot. Docker starts containerd.
func (f *Facts) Disabled(units ...string) []string {
	var list []string
	for _, name := range units {
		u := f.Unit(name)
		if u.Active == "active" && (u.File == "disabled" || strings.HasPrefix(u.File, "masked")) {
			list = append(list, name)
		}
	}
	return slices.DeleteFunc(list, func(unit string) bool {
		return unit == "containerd.service" && f.Unit("docker.service").Active == "active"
	})
}
