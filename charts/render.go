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

// RenderOptions configure the rendering of a chart.
type RenderOptions struct {
	Release, Namespace string
	// Values override the chart's own.
	Values map[string]any
	// KubeVersion is the cluster's version, vMAJOR.MINOR.PATCH.
	KubeVersion string
	// APIVersions are available in addition to those of Kubernetes and of the chart's own CRDs.
	APIVersions []string
	// MaxOutput bounds the total bytes of all rendered files.
	MaxOutput int64
}

// A Rendering is the YAML that Helm would send to a cluster.
type Rendering struct {
	Name, Version string
	// Files are the rendered templates of the chart and its enabled subcharts, including hooks, sorted by name. Empty
	// files and NOTES.txt are left out.
	Files []RenderedFile
	// Annotations are the values of artifacthub.io/images in each Chart.yaml that has it.
	Annotations []RenderedFile
	// Lookups are the kinds of objects that templates looked up in a cluster, "apps/v1 Deployment", sorted. The lookups
	// found nothing.
	Lookups []string
}

// A RenderedFile is text with its file's path in the chart.
type RenderedFile struct{ Name, Content string }

// Render reads a packaged chart and renders it as for an installation, with conditions, tags and imported values of
// subcharts, but without access to a cluster or network.
//
// A template can loop for ever and cannot be stopped within the process: render foreign charts in a process that can be
// killed. Helm itself bounds the nesting of includes.
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
		return nil, fmt.Errorf("the chart requires Kubernetes %s, not %s", want, caps.KubeVersion.String())
	}
	release := chartutil.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 1, IsInstall: true}
	// Schemas are not checked: they may refer to addresses, which would be fetched.
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

// take keeps the files that would be sent to a cluster.
func (r *Rendering) take(files map[string]string, most int64) error {
	var total int64
	for name, content := range files {
		if path.Base(name) == "NOTES.txt" || strings.TrimSpace(content) == "" {
			continue
		}
		if total += int64(len(content)); total > most {
			return fmt.Errorf("%w: more than %d bytes rendered", ErrTooLarge, most)
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

// capabilities returns Helm's own for the version, plus the chart's CRDs, which Helm installs first.
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

// crdVersions returns the API versions that a file of CRDs defines. Helm reports anything that is not a CRD.
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

// lookups implements the template function lookup for an empty cluster, and records the kinds looked up.
type lookups map[string]bool

// GetClientFor implements Helm's engine.ClientProvider.
func (l lookups) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	const most = 100 // bounded, since templates can invent names of kinds
	if len(l) < most {
		l[plain.Clip(apiVersion+" "+kind, 100)] = true
	}
	return nowhere{}, true, nil
}

var _ engine.ClientProvider = lookups{}
