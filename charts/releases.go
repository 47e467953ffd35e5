package charts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/kubernetes"
)

// A Release is a deployed release of a cluster.
type Release struct {
	Name, Namespace string
	Chart, Version  string
	// Values are those that its user gave, as YAML; nil if there are none.
	Values []byte
	// Archive is the packaged chart. It is nil if Lost says what the cluster does not keep of the chart.
	Archive []byte
	Lost    string
}

// Releases returns the releases that are deployed in some namespaces, by namespace and name. Helm keeps a chart with
// its release, but not the subcharts in it.
func Releases(ctx context.Context, c *Cluster, namespaces []string) ([]Release, error) {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return nil, err
	}
	var all []Release
	for _, namespace := range namespaces {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stored, err := driver.NewSecrets(client.CoreV1().Secrets(namespace)).List(func(r *release.Release) bool {
			return r.Info != nil && r.Info.Status == release.StatusDeployed && r.Chart != nil && r.Chart.Metadata != nil
		})
		if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
			return nil, fmt.Errorf("releases in namespace %s: %w", namespace, err)
		}
		slices.SortFunc(stored, func(a, b *release.Release) int { return strings.Compare(a.Name, b.Name) })
		for _, r := range stored {
			r.Namespace = namespace
			one, err := readRelease(r)
			if err != nil {
				return nil, fmt.Errorf("release %s/%s: %w", r.Namespace, r.Name, err)
			}
			all = append(all, one)
		}
	}
	return all, nil
}

func readRelease(r *release.Release) (one Release, err error) {
	m := r.Chart.Metadata
	if err := errors.Join(chartutil.ValidateReleaseName(r.Name), m.Validate()); err != nil {
		return Release{}, err
	}
	one = Release{Name: r.Name, Namespace: r.Namespace, Chart: m.Name, Version: m.Version}
	if len(r.Config) > 0 {
		if one.Values, err = yaml.Marshal(r.Config); err != nil {
			return one, err
		}
	}
	if len(m.Dependencies) > len(r.Chart.Dependencies()) {
		one.Lost = "its subcharts"
		return one, nil
	}
	one.Archive, err = pack(r.Chart)
	return one, err
}

// pack returns the archive of a chart.
func pack(c *chart.Chart) (data []byte, err error) {
	dir, err := os.MkdirTemp("", "kkbundle-chart-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file, err := chartutil.Save(c, dir)
	if err != nil {
		return nil, err
	}
	if filepath.Dir(file) != dir {
		return nil, fmt.Errorf("chart %q has a name that leads to another directory", c.Metadata.Name)
	}
	return os.ReadFile(file)
}
