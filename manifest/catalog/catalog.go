// Package catalog knows where the components of a cluster are published: the files, images and charts, and which
// versions go with which Kubernetes. What it knows is data (catalog.yaml); a version that is not listed resolves
// through the same templates, so a patch release of tomorrow needs no new kkbundle.
//
// The package is pure: it opens no connection. Build puts what Resolve returns into a bundle; install finds it there by
// Ref, from the same cluster file.
package catalog

import (
	"bytes"
	_ "embed" // the data
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

//go:embed catalog.yaml
var data []byte

// table is catalog.yaml.
type table struct {
	Components map[string]component         `yaml:"components"`
	Zones      map[string][]manifest.Source `yaml:"zones"`
}

// component is where one component is published and how its version is found.
type component struct {
	Follows string            `yaml:"follows"`
	Default string            `yaml:"default"`
	Since   map[string]string `yaml:"since"`
	File    *file             `yaml:"file"`
	Image   string            `yaml:"image"`
	Chart   string            `yaml:"chart"`
}

type file struct {
	URL       string            `yaml:"url"`
	Checksums string            `yaml:"checksums"`
	Stable    string            `yaml:"stable"`
	Mode      manifest.FileMode `yaml:"mode"`
}

// load reads the embedded data once, at first use.
var load = sync.OnceValues(func() (*table, error) { return parse(data) }) //nolint:gochecknoglobals // what it holds does not change

func parse(data []byte) (*table, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var t table
	if err := decoder.Decode(&t); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	return &t, nil
}

// Additions are what a cluster adds to a bundle.
type Additions struct {
	Files  []manifest.File
	Images []manifest.Image
	Charts []manifest.Chart
	// Sources are the mirrors of the zone.
	Sources []manifest.Source
}

// Resolve returns what the needs of a cluster add to a bundle, sorted by name and without repeats. An empty zone is
// upstream itself. The error joins everything that is not known.
func Resolve(c *manifest.Cluster, needs []manifest.Need, zone string) (Additions, error) {
	t, err := load()
	if err != nil {
		return Additions{}, err
	}
	r := resolver{t, c}
	errs := r.overrides()
	var a Additions
	needs = slices.SortedFunc(slices.Values(needs), compareNeeds)
	for _, need := range slices.Compact(needs) {
		if err := r.add(&a, need); err != nil {
			errs = append(errs, err)
		}
	}
	if zone != "" {
		mirrors, ok := t.Zones[zone]
		if !ok {
			errs = append(errs, fmt.Errorf("zone %q is not known; known: %s", zone, names(t.Zones)))
		}
		a.Sources = slices.Clone(mirrors)
	}
	return a, errors.Join(errs...)
}

// Ref returns the io.kkbundle.ref under which a bundle has what a cluster needs. The platform matters for files only.
func Ref(c *manifest.Cluster, need manifest.Need, platform manifest.Platform) (string, error) {
	t, err := load()
	if err != nil {
		return "", err
	}
	var a Additions
	if err := (resolver{t, c}).add(&a, need); err != nil {
		return "", err
	}
	switch need.Kind {
	case manifest.ItemFile:
		return manifest.FileURL(a.Files[0], platform), nil
	case manifest.ItemImage:
		return a.Images[0].Ref()
	default:
		return manifest.ChartRef(a.Charts[0], "", ""), nil
	}
}

// ImageRef returns the fully qualified reference of a component's image.
func ImageRef(c *manifest.Cluster, name string) (string, error) {
	return Ref(c, manifest.Need{Kind: manifest.ItemImage, Name: name}, "")
}

// Version returns a component's version as the cluster has it: its own entry under components, or cri.version for the
// runtime, or what goes with its Kubernetes, or the catalog's default.
func Version(c *manifest.Cluster, name string) (string, error) {
	t, err := load()
	if err != nil {
		return "", err
	}
	r := resolver{t, c}
	one, err := r.component(name)
	if err != nil {
		return "", err
	}
	return r.version(name, one)
}

// Newest returns the newest Kubernetes that the catalog has components for, vMAJOR.MINOR.PATCH.
func Newest() (string, error) {
	t, err := load()
	if err != nil {
		return "", err
	}
	var newest *semver.Version
	for name, one := range t.Components {
		for from := range one.Since {
			v, err := semver.NewVersion(from)
			if err != nil {
				return "", fmt.Errorf("read the catalog: %s: %q: %w", name, from, err)
			}
			if newest == nil || v.GreaterThan(newest) {
				newest = v
			}
		}
	}
	if newest == nil {
		return "", errors.New("read the catalog: no component has a version for a Kubernetes")
	}
	return "v" + newest.String(), nil
}

func names[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

func compareNeeds(a, b manifest.Need) int {
	if d := strings.Compare(a.Kind, b.Kind); d != 0 {
		return d
	}
	return strings.Compare(a.Name, b.Name)
}

// resolver looks components up for one cluster.
type resolver struct {
	*table
	cluster *manifest.Cluster
}

func (r resolver) component(name string) (component, error) {
	one, ok := r.Components[name]
	if !ok {
		return component{}, fmt.Errorf("component %q is not in the catalog; known: %s", name, names(r.Components))
	}
	return one, nil
}

// overrides refuses entries under components that nothing would read.
func (r resolver) overrides() []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.cluster.Components)) {
		if _, err := r.component(name); err != nil {
			errs = append(errs, r.cluster.Problem("components["+name+"]", err.Error()))
		}
	}
	return errs
}

// add resolves one need.
func (r resolver) add(a *Additions, need manifest.Need) error {
	one, err := r.component(need.Name)
	if err != nil {
		return err
	}
	version, err := r.version(need.Name, one)
	if err != nil {
		return err
	}
	fill := strings.NewReplacer("{version}", version, "{number}", strings.TrimPrefix(version, "v")).Replace
	switch {
	case need.Kind == manifest.ItemFile && one.File != nil:
		a.Files = append(a.Files, manifest.File{
			Name: need.Name, Version: version,
			URL: fill(one.File.URL), Checksums: fill(one.File.Checksums), Mode: one.File.Mode,
		})
	case need.Kind == manifest.ItemImage && one.Image != "":
		a.Images = append(a.Images, manifest.Image{Name: fill(one.Image)})
	case need.Kind == manifest.ItemChart && one.Chart != "":
		a.Charts = append(a.Charts, manifest.Chart{Name: need.Name, URL: fill(one.Chart), Version: version})
	default:
		return fmt.Errorf("component %s %s has no %s in the catalog", need.Name, version, need.Kind)
	}
	return nil
}

// version says which version of a component the cluster has.
func (r resolver) version(name string, one component) (string, error) {
	if v := r.cluster.Components[name].Version; v != "" {
		return v, nil
	}
	if name == "containerd" && r.cluster.CRI.Version != "" {
		return r.cluster.CRI.Version, nil
	}
	switch {
	case one.Follows == "kubernetes":
		return r.cluster.Kubernetes.Version, nil
	case one.Default != "":
		return one.Default, nil
	}
	return r.since(name, one.Since)
}

// since finds the last entry of the same minor release that is not newer than the cluster's Kubernetes.
func (r resolver) since(name string, table map[string]string) (string, error) {
	want, err := semver.NewVersion(r.cluster.Kubernetes.Version)
	if err != nil {
		return "", fmt.Errorf("kubernetes version %q: %w", r.cluster.Kubernetes.Version, err)
	}
	var best *semver.Version
	var found string
	minors := map[string]bool{}
	for from, version := range table {
		v, err := semver.NewVersion(from)
		if err != nil {
			return "", fmt.Errorf("read the catalog: %s: %q: %w", name, from, err)
		}
		minors[fmt.Sprintf("v%d.%02d", v.Major(), v.Minor())] = true
		sameMinor := v.Major() == want.Major() && v.Minor() == want.Minor()
		if sameMinor && !v.GreaterThan(want) && (best == nil || v.GreaterThan(best)) {
			best, found = v, version
		}
	}
	if best == nil {
		return "", fmt.Errorf("component %s: no version is known that goes with Kubernetes %s; known: %s; name one in the cluster file under components.%s.version",
			name, r.cluster.Kubernetes.Version, names(minors), name)
	}
	return found, nil
}

// AddTo returns a copy of a bundle with the additions behind what was there. What the manifest has itself under the same
// reference stays as it is, and so do its sources. An image that the manifest pins by digest has another reference than
// the one the cluster uses, so both are kept; they share their content.
func (a Additions) AddTo(b *manifest.Bundle) (*manifest.Bundle, error) {
	out := *b
	out.Images, out.Charts = slices.Clone(b.Images), slices.Clone(b.Charts)
	out.Files, out.Sources = slices.Clone(b.Files), slices.Clone(b.Sources)
	own := map[string]bool{}
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		own[ref] = true
	}
	for _, image := range a.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		if !own[ref] {
			out.Images = append(out.Images, image)
		}
	}
	for _, chart := range a.Charts {
		if !slices.ContainsFunc(b.Charts, func(o manifest.Chart) bool { return o.URL == chart.URL }) {
			out.Charts = append(out.Charts, chart)
		}
	}
	for _, f := range a.Files {
		if !slices.ContainsFunc(b.Files, func(o manifest.File) bool { return o.URL == f.URL }) {
			out.Files = append(out.Files, f)
		}
	}
	for _, s := range a.Sources {
		if !slices.ContainsFunc(b.Sources, func(o manifest.Source) bool { return strings.EqualFold(o.Host, s.Host) }) {
			out.Sources = append(out.Sources, s)
		}
	}
	return &out, nil
}
