package installer

import (
	"context"
	_ "embed" // scripts
	"errors"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	lookRegistry       = "registry-service"
	lookRegistryImages = "verify-registry"
)

func registryLooks() []look {
	return []look{
		{
			lookRegistry, "the registry's services run on every registry host",
			"nodes do not get images that they lack, or go on without the second registry host",
			"on that host: systemctl status and journalctl --unit of what is named; kkbundle install starts it",
		},
		{
			lookRegistryImages, "each of two registry hosts has every image and chart of the bundle",
			"nodes do not get images when the other host is lost",
			"run install again",
		},
	}
}

// A registrySeen is what a registry host says itself.
type registrySeen struct {
	name         string
	node, wanted bool
	err          error    // why it could not be asked
	stopped      []string // its units that should run and do not
}

// surveyRegistries asks the registry hosts for the units that an installation has left there.
func (r *Site) surveyRegistries(ctx context.Context) []registrySeen {
	targets := r.registryHosts()
	list := make([]registrySeen, len(targets))
	_ = r.onAll(targets, func(i int, t *Target) error {
		list[i] = registrySeen{name: t.Name, node: t.Is(manifest.RoleCluster), wanted: r.isWanted(t), err: t.failure}
		switch {
		case t.failure != nil:
		case t.on == nil:
			list[i].err = errors.New("this run is not connected to it")
		default:
			list[i].stopped, list[i].err = t.stoppedUnits(ctx, registryUnit, registryAddressUnit, dockerUnit, harborUnit)
		}
		return nil
	})
	return list
}

//go:embed scripts/stopped-units.sh
var stoppedUnitsScript string

// stoppedUnits returns those of the units that are installed and do not run.
func (t *Target) stoppedUnits(ctx context.Context, units ...string) ([]string, error) {
	out, err := t.output(ctx, host.Script("stopped-units.sh", stoppedUnitsScript, units...)...)
	return strings.Fields(string(out)), err
}

func (s *survey) judgeRegistries() report.Findings {
	var list report.Findings
	for _, h := range s.registries {
		switch {
		case !h.wanted:
		case h.err != nil && h.node: // which is said of the node
		case h.err != nil:
			list = append(list, finding(lookReachable, h.name, report.Failed, h.err.Error()))
		case len(h.stopped) > 0:
			list = append(list, finding(lookRegistry, h.name, report.Failed, strings.Join(h.stopped, ", ")+" does not run"))
		default:
			list = append(list, finding(lookRegistry, h.name, report.OK, ""))
		}
	}
	return list
}
