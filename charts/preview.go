package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/discovery"
)

// A Preview is what Install would do.
type Preview struct {
	// Changes reports whether Install would make a new revision.
	Changes bool
	// Manifest and Hooks are the rendered YAML, without the changes of Rewrite.
	Manifest, Hooks string
	// Before is the YAML of the deployed revision, "" if there is none.
	Before string
	// Version is the deployed chart's version, "" if there is none.
	Version string
	// Foreign reports whether a release of this name exists that this package did not install.
	Foreign bool
	// Pending is the state of a revision that the helm command is making, or began and did not end; "" if there is
	// none.
	Pending string
}

// PreviewInstall renders a chart with the values, capabilities and objects of the cluster, and changes nothing.
// definitions are API versions that the cluster will have by then, see APIVersions. Helm changes the chart while it
// renders: load it again for Install.
func PreviewInstall(ctx context.Context, c *Chart, o InstallOptions, definitions []string) (*Preview, error) {
	o, end := ofOneCall(o)
	defer end()
	r, err := lookUp(ctx, c, o)
	if err != nil {
		return nil, err
	}
	p := &Preview{Changes: !r.isDeployed()}
	if r.last != nil && r.last.Info.Status != release.StatusUninstalled {
		p.Foreign = r.last.Labels[MarkLabel] == ""
		if r.last.Info.Status.IsPending() && markOf(r.last) == "" {
			p.Pending = r.last.Info.Status.String()
		}
	}
	before, err := r.cfg.Releases.Deployed(o.Release)
	if err == nil {
		p.Before, p.Version = before.Manifest, before.Chart.Metadata.Version
	} else if !errors.Is(err, driver.ErrReleaseNotFound) && !errors.Is(err, driver.ErrNoDeployedReleases) {
		return nil, fmt.Errorf("look up release %s/%s: %w", o.Namespace, o.Release, err)
	}
	p.Manifest, p.Hooks, err = r.render(ctx, c, o, definitions)
	if err != nil {
		return nil, fmt.Errorf("render chart %s %s as %s/%s: %w", c.Name(), c.Version(), o.Namespace, o.Release, err)
	}
	return p, nil
}

// renderChart returns the files that a chart is rendered into, and the chart with the dependencies that the values
// enable. The dependencies are processed here after a sandbox process has done the same within its limits.
func (s state) renderChart(ctx context.Context, c *Chart, o InstallOptions,
	caps *chartutil.Capabilities,
) (map[string]string, *chart.Chart, error) {
	how := chartutil.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 1, IsInstall: true}
	if s.last != nil && s.last.Info.Status != release.StatusUninstalled {
		how.Revision, how.IsInstall, how.IsUpgrade = s.last.Version+1, false, true
	}
	if how.IsInstall { // Helm creates them first
		for _, crd := range c.helm.CRDObjects() {
			caps.APIVersions = append(caps.APIVersions, crdVersions(crd.File.Data)...)
		}
	}
	if want := c.helm.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want,
		caps.KubeVersion.String()) {
		return nil, nil, &KubeVersionError{Want: want, Have: caps.KubeVersion.String()}
	}
	files, err := s.renderFiles(ctx, c, o.Values, how, caps)
	if err != nil {
		return nil, nil, err
	}
	enabled := *c.helm // the enabled dependencies are recorded in it
	if err := chartutil.ProcessDependenciesWithMerge(&enabled, copyValues(o.Values)); err != nil {
		return nil, nil, fmt.Errorf("dependencies: %w", err)
	}
	return files, &enabled, nil
}

// render returns the objects and the hooks that Helm would send.
func (s state) render(ctx context.Context, c *Chart, o InstallOptions,
	definitions []string,
) (objects, hooks string, err error) {
	caps, err := s.capabilities()
	if err != nil {
		return "", "", err
	}
	caps.APIVersions = slices.Concat(caps.APIVersions, definitions, APIVersions(c.CRDs()))
	files, _, err := s.renderChart(ctx, c, o, caps)
	if err != nil {
		return "", "", err
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	hookList, list, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return "", "", err
	}
	var a, b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&a, "---\n# Source: %s\n%s\n", m.Name, m.Content)
	}
	for _, h := range hookList {
		fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", h.Path, h.Manifest)
	}
	return a.String(), b.String(), nil
}

// capabilities returns the cluster's version and API versions.
func (s state) capabilities() (*chartutil.Capabilities, error) {
	client, err := s.cfg.RESTClientGetter.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	version, err := client.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	versions, err := action.GetVersionSet(client)
	// an API service that does not answer; the others are listed
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.APIVersions = versions
	caps.KubeVersion = chartutil.KubeVersion{Version: version.GitVersion, Major: version.Major, Minor: version.Minor}
	return caps, nil
}

// APIVersions returns the API versions that YAML of custom resource definitions defines.
func APIVersions(definitions []byte) []string { return crdVersions(definitions) }

// Uninstall removes a release with its objects and hooks. It reports whether there was one.
func Uninstall(ctx context.Context, o InstallOptions) (bool, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o, end := ofOneCall(o)
	defer end()
	cfg, err := configuration(ctx, o)
	if err != nil {
		return false, fmt.Errorf("release %s/%s: %w", o.Namespace, o.Release, err)
	}
	log := cfg.Log
	var causes []error // Helm's error lacks them, its log has them
	cfg.Log = func(format string, args ...any) {
		for _, arg := range args {
			if list, ok := arg.([]error); ok {
				causes = append(causes, list...)
			}
		}
		log(format, args...)
	}
	uninstall := action.NewUninstall(cfg)
	uninstall.IgnoreNotFound, uninstall.Timeout = true, timeout(o)
	uninstall.Wait = o.Wait > 0
	done, err := uninstall.Run(o.Release)
	if err != nil {
		return false, fmt.Errorf("uninstall release %s/%s: %w", o.Namespace, o.Release,
			errors.Join(append([]error{err}, causes...)...))
	}
	return done != nil && done.Release != nil, nil
}

// IsOwn reports whether this package made a release's newest revision, or the revision that the helm command based it
// on. It reports true if there is no release.
func IsOwn(ctx context.Context, o InstallOptions) (bool, error) {
	last, err := lastRevision(ctx, o)
	return last == nil || last.Labels[MarkLabel] != "", err
}

// ReleaseStatus returns the state of a release's newest revision as Helm names it, "" if there is none.
func ReleaseStatus(ctx context.Context, o InstallOptions) (string, error) {
	last, err := lastRevision(ctx, o)
	if last == nil || err != nil {
		return "", err
	}
	return last.Info.Status.String(), nil
}

// lastRevision returns a release's newest revision, nil if there is none.
func lastRevision(ctx context.Context, o InstallOptions) (*release.Release, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o, end := ofOneCall(o)
	defer end()
	cfg, err := configuration(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("release %s/%s: %w", o.Namespace, o.Release, err)
	}
	last, err := cfg.Releases.Last(o.Release)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up release %s/%s: %w", o.Namespace, o.Release, err)
	}
	return last, nil
}
