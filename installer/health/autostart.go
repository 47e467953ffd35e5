package health

import (
	"context"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
)

// disabledUnits returns the running units of a node that nothing starts at boot.
func disabledUnits(ctx context.Context, t *task.Host) ([]string, error) {
	out, err := t.Output(ctx, append([]string{"systemctl", "show", "--property=Id,ActiveState,UnitFileState", "--"},
		node.BootUnits()...)...)
	if err != nil {
		return nil, err
	}
	var facts node.Facts
	for block := range strings.SplitSeq(string(out), "\n\n") {
		values := map[string]string{}
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values[key] = value
		}
		facts.Systemd.Units = append(facts.Systemd.Units, node.Unit{
			Name: values["Id"], Active: values["ActiveState"],
			File: values["UnitFileState"],
		})
	}
	return facts.Disabled(node.BootUnits()...), nil
}

func (s *Survey) judgeAutostart() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		switch {
		case !h.Member || h.Err != nil:
		case len(h.Disabled) > 0:
			list = append(list, NewFinding(checkAutostart, h.Name, report.Warning, "running, but not started at boot: "+
				strings.Join(h.Disabled, ", ")))
		default:
			list = append(list, NewFinding(checkAutostart, h.Name, report.OK, ""))
		}
	}
	return list
}
