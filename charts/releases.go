package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
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
	// Archive is the packaged chart, nil if Helm does not keep a part of it. Lost then names that part.
	Archive []byte
	Lost    string
	// Content is the digest of the chart as Helm keeps it. Two different charts can have one name and version.
	Content digest.Digest
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
	if len(m.Dependencies) > 0 || hasSubcharts(r.Manifest) {
		one.Lost = "the subcharts"
		return one, nil
	}
	content, err := json.Marshal(r.Chart)
	if err != nil {
		return one, err
	}
	one.Content = digest.FromBytes(content)
	one.Archive, err = pack(r.Chart)
	return one, err
}

// hasSubcharts reports whether a rendered chart has objects of subcharts. Helm writes the template of each object
// before it: NAME/charts/SUBCHART/templates/FILE.
func hasSubcharts(manifest string) bool {
	for line := range strings.Lines(manifest) {
		if source, ok := strings.CutPrefix(line, "# Source: "); ok && strings.Contains(source, "/charts/") {
			return true
		}
	}
	return false
}

// pack returns the archive of a chart that was kept with a release. Its values.yaml was not: it is made of the values.
func pack(c *chart.Chart) (data []byte, err error) {
	dir, err := os.MkdirTemp("", "kkbundle-chart-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if len(c.Values) > 0 {
		values, err := yaml.Marshal(c.Values)
		if err != nil {
			return nil, err
		}
		c.Raw = []*chart.File{{Name: chartutil.ValuesfileName, Data: values}}
	}
	file, err := chartutil.Save(c, dir)
	if err != nil {
		return nil, err
	}
	if filepath.Dir(file) != dir {
		return nil, fmt.Errorf("chart %q has a name that leads to another directory", c.Metadata.Name)
	}
	return os.ReadFile(file)
}
