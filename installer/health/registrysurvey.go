package health

import (
	"context"
	_ "embed"
	"errors"
	"strings"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
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

// SurveyRegistries asks the registry hosts for the units that an installation has left there.
func SurveyRegistries(ctx context.Context, r *task.Site) []registrySeen {
	targets := r.RegistryHosts()
	list := make([]registrySeen, len(targets))
	_ = r.OnAll(targets, func(i int, t *task.Host) error {
		list[i] = registrySeen{name: t.Name, node: t.Is(manifest.RoleCluster), wanted: r.IsWanted(t), err: t.Err}
		switch {
		case t.Err != nil:
		case t.Conn == nil:
			list[i].err = errors.New("this run is not connected to it")
		default:
			list[i].stopped, list[i].err = stoppedUnits(ctx, t, siteregistry.Unit, siteregistry.AddressUnit, cri.DockerUnit, siteregistry.HarborUnit)
		}
		return nil
	})
	return list
}

//go:embed scripts/stopped-units.sh
var stoppedUnitsScript string

// stoppedUnits returns those of the units that are installed and do not run.
func stoppedUnits(ctx context.Context, t *task.Host, units ...string) ([]string, error) {
	out, err := t.Output(ctx, host.Script("stopped-units.sh", stoppedUnitsScript, units...)...)
	return strings.Fields(string(out)), err
}

func (s *Survey) JudgeRegistries() report.Findings {
	var list report.Findings
	for _, h := range s.Registries {
		switch {
		case !h.wanted:
		case h.err != nil && h.node: // which is said of the node
		case h.err != nil:
			list = append(list, Finding(lookReachable, h.name, report.Failed, h.err.Error()))
		case len(h.stopped) > 0:
			list = append(list, Finding(lookRegistry, h.name, report.Failed, strings.Join(h.stopped, ", ")+" does not run"))
		default:
			list = append(list, Finding(lookRegistry, h.name, report.OK, ""))
		}
	}
	return list
}

// VerifyRegistryTask holds each registry host against the bundle.
func VerifyRegistryTask() task.Task {
	return task.Task{
		Name:  lookRegistryImages,
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Do: func(ctx context.Context, t *task.Host) error {
			ok, err := siteregistry.Seeded(ctx, t)
			if err == nil && !ok {
				err = errors.New("the registry on this host lacks images or charts of the bundle: run install again")
			}
			return err
		},
	}
}
