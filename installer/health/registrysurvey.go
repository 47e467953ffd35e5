package health

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	checkRegistry       = "registry-service"
	checkRegistryImages = "verify-registry"
)

func registryChecks() []check {
	return []check{
		{
			checkRegistry, "the registry's services run on every registry host",
			"nodes do not get images that they lack, or go on without the second registry host",
			"on that host: systemctl status and journalctl --unit of the named units; kkbundle install starts it",
		},
		{
			checkRegistryImages, "each of two registry hosts has every image and chart of the bundle",
			"nodes do not get images when the other host is lost",
			"run install again",
		},
	}
}

// A RegistryState is the state of a registry host.
type RegistryState struct {
	Name string
	// Certificates are the host's, unless it is a Surveyed host, too.
	Certificates []node.Certificate

	node, wanted bool
	err          error    // why the host could not be asked
	stopped      []string // installed units that do not run
}

// SurveyRegistries asks the registry hosts for the units that an installation created, and for their certificates.
func SurveyRegistries(ctx context.Context, r *task.Site) []RegistryState {
	targets := r.RegistryHosts()
	list := make([]RegistryState, len(targets))
	_ = r.OnAll(targets, func(i int, t *task.Host) error {
		list[i] = RegistryState{Name: t.Name, node: t.Is(manifest.RoleCluster), wanted: r.IsWanted(t), err: t.Err}
		switch {
		case t.Err != nil:
		case t.Conn == nil:
			list[i].err = errors.New("this run is not connected to it")
		default:
			list[i].stopped, list[i].err = stoppedUnits(ctx, t, siteregistry.Unit, siteregistry.PushUnit,
				siteregistry.AddressUnit, cri.DockerUnit, siteregistry.HarborUnit)
			if list[i].err == nil && !slices.ContainsFunc(surveyedRoles(), t.Is) {
				list[i].Certificates, list[i].err = Certificates(ctx, t)
			}
		}
		return nil
	})
	return list
}

//go:embed scripts/stopped-units.sh
var stoppedUnitsScript string

// stoppedUnits returns the units that are installed and do not run.
func stoppedUnits(ctx context.Context, t *task.Host, units ...string) ([]string, error) {
	out, err := t.Output(ctx, host.Script("stopped-units.sh", stoppedUnitsScript, units...)...)
	return strings.Fields(string(out)), err
}

// JudgeRegistries judges the units of the registry hosts.
func (s *Survey) JudgeRegistries() report.Findings {
	var list report.Findings
	for _, h := range s.Registries {
		switch {
		case !h.wanted:
		case h.err != nil && h.node: // the node's finding reports it
		case h.err != nil:
			list = append(list, NewFinding(checkReachable, h.Name, report.Failed, h.err.Error()))
		case len(h.stopped) > 0:
			list = append(list, NewFinding(checkRegistry, h.Name, report.Failed, strings.Join(h.stopped, ", ")+
				" does not run"))
		default:
			list = append(list, NewFinding(checkRegistry, h.Name, report.OK, ""))
		}
	}
	return list
}

// VerifyRegistryTask compares each registry host with the bundle.
func VerifyRegistryTask() task.Task {
	return task.Task{
		Name:  checkRegistryImages,
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
