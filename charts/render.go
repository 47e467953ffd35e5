package charts

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/plain"
)

// imagesAnnotation is the annotation of Chart.yaml that lists a chart's images
// (https://artifacthub.io/docs/topics/annotations/helm/).
const imagesAnnotation = "artifacthub.io/images"

// RenderOptions say for what a chart is rendered.
type RenderOptions struct {
	Release, Namespace string
	// Values go over the chart's own.
	Values map[string]any
	// KubeVersion is the cluster's version, vMAJOR.MINOR.PATCH.
	KubeVersion string
	// APIVersions are there besides those of Kubernetes and of the chart's own CRDs.
	APIVersions []string
	// MaxOutput bounds the bytes of all rendered files together.
	MaxOutput int64
}

// A Rendering is what Helm would send to a cluster.
type Rendering struct {
	Name, Version string
	// Files are the rendered templates of the chart and its enabled subcharts, hooks included, by name and sorted: empty
	// ones and NOTES.txt are left out.
	Files []RenderedFile
	// Annotations are the values of artifacthub.io/images in each Chart.yaml that has it.
	Annotations []RenderedFile
	// Lookups are the kinds of object that templates asked a cluster for, "apps/v1 Deployment", sorted. They were told that
	// there is none.
	Lookups []string
}

// A RenderedFile is text with the path of the file in the chart that it came from.
type RenderedFile struct{ Name, Content string }

// Render reads a packaged chart and renders it the way an install would, with conditions, tags and imported values of
// subcharts, without asking a cluster or a network for anything.
//
// A template can loop without an end and nothing can stop it from within the process: charts from elsewhere are rendered in
// a process that can be killed. Helm itself bounds the nesting of includes.
func Render(archive io.Reader, o RenderOptions) (*Rendering, error) {
	loaded, err := Load(archive)
	if err != nil {
		return nil, err
	}
	c := loaded.helm
	values := copyValues(o.Values)
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, fmt.Errorf("dependencies: %w", err)
	}
	caps, err := capabilities(c, o)
	if err != nil {
		return nil, err
	}
	if want := c.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want, caps.KubeVersion.String()) {
		return nil, fmt.Errorf("the chart is for Kubernetes %s and not for %s", want, caps.KubeVersion.String())
	}
	release := chartutil.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 1, IsInstall: true}
	// Schemas are not looked at: they may refer to addresses, which would be asked.
	all, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, release, caps, true)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	asked := lookups{}
	files, err := engine.RenderWithClientProvider(c, all, asked)
	if err != nil {
		return nil, err
	}
	r := &Rendering{Name: loaded.Name(), Version: loaded.Version(), Lookups: slices.Sorted(maps.Keys(asked))}
	r.Annotations = annotations(c)
	return r, r.take(files, o.MaxOutput)
}

// take keeps what is sent to a cluster.
func (r *Rendering) take(files map[string]string, most int64) error {
	var total int64
	for name, content := range files {
		if path.Base(name) == "NOTES.txt" || strings.TrimSpace(content) == "" {
			continue
		}
		if total += int64(len(content)); total > most {
			return fmt.Errorf("%w: it renders to more than %d bytes", ErrTooLarge, most)
		}
		r.Files = append(r.Files, RenderedFile{name, content})
	}
	slices.SortFunc(r.Files, func(a, b RenderedFile) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func annotations(c *chart.Chart) []RenderedFile {
	var list []RenderedFile
	if text := c.Metadata.Annotations[imagesAnnotation]; text != "" {
		list = append(list, RenderedFile{path.Join(c.ChartFullPath(), "Chart.yaml"), text})
	}
	for _, sub := range c.Dependencies() {
		list = append(list, annotations(sub)...)
	}
	return list
}

// capabilities are Helm's own for the version, with what the chart's CRDs bring: Helm installs those first.
func capabilities(c *chart.Chart, o RenderOptions) (*chartutil.Capabilities, error) {
	caps := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(o.KubeVersion)
	if err != nil {
		return nil, fmt.Errorf("kubernetes version %q: %w", o.KubeVersion, err)
	}
	caps.KubeVersion = *version
	caps.APIVersions = slices.Concat(caps.APIVersions, o.APIVersions)
	for _, crd := range c.CRDObjects() {
		caps.APIVersions = append(caps.APIVersions, crdVersions(crd.File.Data)...)
	}
	return caps, nil
}

// crdVersions returns the API versions that a file of CRDs defines. What is no CRD is Helm's to report.
func crdVersions(data []byte) []string {
	var versions []string
	for doc := range strings.SplitSeq("\n"+string(data), "\n---") {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct{ Name string }
			}
		}
		if err := yaml.Unmarshal([]byte(doc), &crd); err != nil {
			continue
		}
		for _, v := range crd.Spec.Versions {
			one := crd.Spec.Group + "/" + v.Name
			versions = append(versions, one, one+"/"+crd.Spec.Names.Kind)
		}
	}
	return versions
}

// lookups answers the template function lookup: there is no cluster, so nothing is in it. It records what was asked for.
type lookups map[string]bool

// GetClientFor implements Helm's engine.ClientProvider.
func (l lookups) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	const most = 100 // names of kinds are the template's to make up
	if len(l) < most {
		l[plain.Clip(apiVersion+" "+kind, 100)] = true
	}
	return nowhere{}, true, nil
}

var _ engine.ClientProvider = lookups{}
