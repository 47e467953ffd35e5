package precheck

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
)

// autostartChecks check what starts at boot.
func autostartChecks() []Check {
	return []Check{
		{
			ID: "autostart", Groups: []string{GroupHost}, Level: Warn,
			Title: "container runtime, kubelet and time service are started at boot", Rule: startsAtBoot,
			Why: "after a restart of the host they do not run: the node stays away, or its clock drifts",
			Fix: "systemctl enable UNIT; for a masked one, systemctl unmask UNIT first",
			FixOf: func(s *Subject) string {
				units := strings.Join(disabledUnits(s), " ")
				return "systemctl enable " + units + "; for a masked one, systemctl unmask first"
			},
			Source: "kubeadm's checks of services; chrony",
		},
	}
}

func startsAtBoot(s *Subject) Finding { return none(disabledUnits(s), "they are") }

// bootUnits returns the units that are to start at boot, also those of other distributions.
func bootUnits() []string {
	return append(node.BootUnits(), "rke2-server.service", "rke2-agent.service")
}

// disabledUnits returns the running units that nothing starts at boot. An installation enables the units of its own
// programs.
func disabledUnits(s *Subject) []string {
	list := s.Facts.Disabled(bootUnits()...)
	if !s.Input.Install || s.Ours() {
		return list
	}
	return slices.DeleteFunc(list, func(unit string) bool { return slices.Contains(node.Services(), unit) })
}
