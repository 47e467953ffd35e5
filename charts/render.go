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
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// imagesAnnotation is the annotation of Chart.yaml that lists a chart's images
// (https://artifacthub.io/docs/topics/annotations/helm/).
const imagesAnnotation = "artifacthub.io/images"

// bitnamiAnnotation is the annotation of the same form in Bitnami's charts. It also lists images of features that are
// not enabled (https://github.com/bitnami/charts/blob/main/bitnami/postgresql/Chart.yaml).
const bitnamiAnnotation = "images"

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
	// files and NOTES.txt are left out. Documents are separated as Helm separates them.
	Files []RenderedFile
	// Definitions are the files of crds/ of the chart and its enabled subcharts, which Helm installs as they are. They
	// may hold any objects.
	Definitions []RenderedFile
	// Upgrade are the files that differ when a release made of Files is upgraded to the same chart. A file that an
	// upgrade lacks is empty.
	Upgrade []RenderedFile
	// NoUpgrade is the reason why Upgrade is missing, "" if it is not.
	NoUpgrade string
	// Unfit says which values a schema of the chart or of its subcharts refuses, "" for none. Helm installs no release
	// with such values.
	Unfit string
	// Annotations are the values of artifacthub.io/images in each Chart.yaml that has it.
	Annotations []RenderedFile
	// Listed are the values of the annotation images, which Bitnami's charts have: images that some values need.
	Listed []RenderedFile
	// Lookups are the kinds of objects that templates looked up in a cluster, "apps/v1 Deployment", sorted. The lookups
	// found nothing, and for Upgrade the objects of Files.
	Lookups []string
}

// A RenderedFile is text with its file's path in the chart.
type RenderedFile struct{ Name, Content string }

// Render reads a packaged chart and renders it as for an installation and for an upgrade, with conditions, tags and
// imported values of subcharts, but without access to a cluster or network.
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
		return nil, &KubeVersionError{Want: want, Have: caps.KubeVersion.String()}
	}
	install := chartutil.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 1, IsInstall: true}
	upgrade := chartutil.ReleaseOptions{Name: o.Release, Namespace: o.Namespace, Revision: 2, IsUpgrade: true}
	cluster := &lookups{namespace: o.Namespace, asked: map[string]bool{}}
	r := &Rendering{
		Name: loaded.Name(), Version: loaded.Version(), Annotations: annotations(c, imagesAnnotation),
		Listed: annotations(c, bitnamiAnnotation),
	}
	if r.Definitions, err = definitions(c, o.MaxOutput); err != nil {
		return nil, err
	}
	// Load has dropped schemas that refer to addresses.
	if _, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, install, caps, false); err != nil {
		r.Unfit = err.Error()
	}
	render := func(release chartutil.ReleaseOptions) ([]RenderedFile, error) {
		all, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, release, caps, true)
		if err != nil {
			return nil, fmt.Errorf("values: %w", err)
		}
		files, err := engine.RenderWithClientProvider(c, all, cluster)
		if err != nil {
			return nil, err
		}
		return sent(files, o.MaxOutput)
	}
	if r.Files, err = render(install); err != nil {
		return nil, err
	}
	cluster.have = r.Files
	again, err := render(upgrade)
	if err != nil {
		r.NoUpgrade = err.Error()
	} else {
		r.Upgrade = changed(r.Files, again)
	}
	r.Lookups = slices.Sorted(maps.Keys(cluster.asked))
	return r, nil
}

// A KubeVersionError means that a chart does not allow the version of Kubernetes.
type KubeVersionError struct {
	Want string // Chart.yaml's kubeVersion
	Have string
}

// Error names both.
func (e *KubeVersionError) Error() string {
	return fmt.Sprintf("the chart requires Kubernetes %s, not %s", e.Want, e.Have)
}

// sent returns the files that would be sent to a cluster.
func sent(files map[string]string, most int64) ([]RenderedFile, error) {
	var total int64
	var list []RenderedFile
	for name, content := range files {
		if strings.HasSuffix(name, "NOTES.txt") || strings.TrimSpace(content) == "" {
			continue
		}
		if total += int64(len(content)); total > most {
			return nil, fmt.Errorf("%w: more than %d bytes rendered", ErrTooLarge, most)
		}
		list = append(list, RenderedFile{name, separated(content)})
	}
	slices.SortFunc(list, func(a, b RenderedFile) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// definitions returns the files of crds/. Nothing in them is rendered.
func definitions(c *chart.Chart, most int64) ([]RenderedFile, error) {
	files := map[string]string{}
	for _, crd := range c.CRDObjects() {
		files[crd.Filename] = string(crd.File.Data)
	}
	return sent(files, most)
}

// separated puts Helm's separation of a rendered file into YAML's form. Helm begins a document after every "---" at
// the beginning of a line, also where text follows on that line.
func separated(content string) string {
	if !strings.Contains("\n"+content, "\n---") {
		return content
	}
	docs := documents(content)
	return strings.Join(docs, "\n---\n") + "\n"
}

// documents splits a rendered file as Helm does.
func documents(content string) []string {
	numbered := releaseutil.SplitManifests(content)
	names := slices.SortedFunc(maps.Keys(numbered), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) // manifest-9, manifest-10
	})
	docs := make([]string, len(names))
	for i, name := range names {
		docs[i] = numbered[name]
	}
	return docs
}

// changed returns the files that differ from those of before, and empty ones for those that are gone.
func changed(before, after []RenderedFile) []RenderedFile {
	was := map[string]string{}
	for _, f := range before {
		was[f.Name] = f.Content
	}
	var list []RenderedFile
	for _, f := range after {
		if was[f.Name] != f.Content {
			list = append(list, f)
		}
		delete(was, f.Name)
	}
	for name := range was {
		list = append(list, RenderedFile{Name: name})
	}
	slices.SortFunc(list, func(a, b RenderedFile) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func annotations(c *chart.Chart, key string) []RenderedFile {
	var list []RenderedFile
	if text := c.Metadata.Annotations[key]; text != "" {
		list = append(list, RenderedFile{path.Join(c.ChartFullPath(), "Chart.yaml"), text})
	}
	for _, sub := range c.Dependencies() {
		list = append(list, annotations(sub, key)...)
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
