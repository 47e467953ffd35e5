package addon

import (
	"context"
	"errors"
	"io/fs"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A DeployedError means that the cluster did not tell which version of the pod network is deployed.
type DeployedError struct{ Err error }

// Error is the reason.
func (e *DeployedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *DeployedError) Unwrap() error { return e.Err }

// NetworkVersions returns the version of the pod network's deployed chart and of the bundle's, and the name of the
// task that installs it. They are "" if kkbundle does not install one, and deployed is "" if none is deployed or no
// administrator's kubeconfig is in the work directory. A DeployedError may go away: an API server restarts.
func NetworkVersions(ctx context.Context, t *task.Host) (name, deployed, bundled string, err error) {
	c := t.Site.Cluster
	o, ok := OwnCharts(c)[string(c.CNI.Primary())]
	if !ok || c.BringsNetwork() || t.Site.Bundle == nil {
		return "", "", "", nil
	}
	conf, err := t.Site.Dir.Read(task.AdminConfFile)
	if errors.Is(err, fs.ErrNotExist) {
		return o.component, "", "", nil
	}
	if err != nil {
		return "", "", "", err
	}
	item, err := t.Site.Component(manifest.Need{Kind: manifest.ItemChart, Name: o.component}, "")
	if err != nil {
		return "", "", "", err
	}
	chart, err := Chart(ctx, t.Site, item)
	if err != nil {
		return "", "", "", err
	}
	deployed, err = charts.DeployedVersion(ctx, charts.InstallOptions{
		Kubeconfig: conf, Dial: t.Dial, Logger: t.Site.Logger, Namespace: o.Namespace, Release: o.Release,
	})
	if err != nil {
		return "", "", "", &DeployedError{err}
	}
	return o.component, deployed, chart.Version(), nil
}
