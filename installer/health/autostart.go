package health

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
)

// bootUnits returns the services that a node needs after a boot, under all their names.
func bootUnits() []string {
	return []string{
		"kubelet.service", "containerd.service", "docker.service", "cri-docker.service", "crio.service", "k3s.service", "k3s-agent.service", "etcd.service",
		"chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntp.service", "ntpd.service", "ntpsec.service",
	}
}

// disabledUnits returns the running units of bootUnits that nothing starts at boot. Docker starts containerd.
func disabledUnits(ctx context.Context, t *task.Host) ([]string, error) {
	out, err := t.Output(ctx, append([]string{"systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState", "--"}, bootUnits()...)...)
	if err != nil {
		return nil, err
	}
	var active, disabled []string
	for block := range strings.SplitSeq(string(out), "\n\n") {
		values := map[string]string{}
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values[key] = value
		}
		if values["ActiveState"] != "active" {
			continue
		}
		unit := values["Id"]
		active = append(active, unit)
		if state := values["UnitFileState"]; (state == "disabled" || strings.HasPrefix(state, "masked")) && !slices.Contains(disabled, unit) {
			disabled = append(disabled, unit)
		}
	}
	return slices.DeleteFunc(disabled, func(unit string) bool {
		return unit == "containerd.service" && slices.Contains(active, "docker.service")
	}), nil
}

func (s *Survey) judgeAutostart() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		switch {
		case !h.Member || h.Err != nil:
		case len(h.Disabled) > 0:
			list = append(list, NewFinding(checkAutostart, h.Name, report.Warning, "running, but not started at boot: "+strings.Join(h.Disabled, ", ")))
		default:
			list = append(list, NewFinding(checkAutostart, h.Name, report.OK, ""))
		}
	}
	return list
}
