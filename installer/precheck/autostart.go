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
			ID: "autostart", Groups: []string{GroupHost}, Level: Warn, Title: "container runtime, kubelet and time service are started at boot", Rule: startsAtBoot,
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

// disabledUnits returns the running units that nothing starts at boot. Docker starts containerd. An installation enables the units of
// its own programs.
func disabledUnits(s *Subject) []string {
	nodes := []string{"kubelet.service", "containerd.service", "docker.service", "cri-docker.service", "crio.service", "k3s.service", "k3s-agent.service"}
	var list []string
	for _, u := range s.Facts.Systemd.Units {
		switch {
		case !isDisabled(u), u.Name == "fapolicyd.service":
		case slices.Contains(nodes, u.Name) && s.Input.Install && !s.Ours():
		case u.Name == "containerd.service" && s.Facts.Unit("docker.service").Active == "active":
		default:
			list = append(list, u.Name)
		}
	}
	return list
}

// isDisabled reports whether a unit runs that nothing starts at boot.
func isDisabled(u node.Unit) bool {
	return u.Active == "active" && (u.File == "disabled" || strings.HasPrefix(u.File, "masked"))
}
