package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// DeployedVersion returns the version of a release's deployed chart, "" if there is none. It reads only the
// kubeconfig, the namespace and the name of the release from o.
func DeployedVersion(ctx context.Context, o InstallOptions) (string, error) {
	o, end := ofOneCall(o)
	defer end()
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	cfg, err := configuration(ctx, o)
	if err != nil {
		return "", fmt.Errorf("release %s/%s: %w", o.Namespace, o.Release, err)
	}
	return deployedVersion(cfg, o)
}

func deployedVersion(cfg *action.Configuration, o InstallOptions) (string, error) {
	r, err := cfg.Releases.Deployed(o.Release)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound), errors.Is(err, driver.ErrNoDeployedReleases):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look up release %s/%s: %w", o.Namespace, o.Release, err)
	}
	return r.Chart.Metadata.Version, nil
}
