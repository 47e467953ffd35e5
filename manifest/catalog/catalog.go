// Package catalog knows the addresses of cluster components: the files, images and charts, and the versions compatible
// with each Kubernetes. Its knowledge is data (data/*.yaml, and the files that a cluster names). An unlisted version
// resolves through the same templates, so a future patch release needs no new kkbundle.
//
// The package is pure: it opens no connection. Build puts the result of Resolve into a bundle, and the catalog beside
// it; install finds the items there by Refs, from the same cluster file and the bundle's catalog.
package catalog

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

//go:embed data/*.yaml
var data embed.FS

// builtin parses the embedded data once, at first use.
var builtin = sync.OnceValues(func() (*catalogfile.Catalog, error) { //nolint:gochecknoglobals // a constant
	entries, err := data.ReadDir("data")
	if err != nil {
		return nil, err
	}
	var all []*catalogfile.Catalog
	for _, e := range entries {
		text, err := data.ReadFile("data/" + e.Name())
		if err != nil {
			return nil, err
		}
		one, err := manifest.ParseCatalog(e.Name(), text)
		if err != nil {
			return nil, fmt.Errorf("kkbundle's own catalog: %w", err)
		}
		all = append(all, one)
	}
	return merged(all...), nil
})

// merged returns a catalog with all entries; later ones replace earlier ones of the same name.
func merged(all ...*catalogfile.Catalog) *catalogfile.Catalog {
	m := &catalogfile.Catalog{
		Releases: map[string]string{}, Components: map[string]catalogfile.CatalogEntry{},
		Packages: map[string]catalogfile.CatalogPackage{}, Zones: map[string][]sources.Source{},
		EndOfLife: map[string]map[string]string{},
		Kubeadm:   map[string]catalogfile.KubeadmImages{}, RemovedGates: map[string][]string{},
		RemovedArguments: map[string][]string{},
	}
	for _, one := range all {
		maps.Copy(m.Releases, one.Releases)
		maps.Copy(m.Components, one.Components)
		maps.Copy(m.Packages, one.Packages)
		maps.Copy(m.Zones, one.Zones)
		for name, lines := range one.EndOfLife {
			all := maps.Clone(m.EndOfLife[name])
			if all == nil {
				all = map[string]string{}
			}
			maps.Copy(all, lines)
			m.EndOfLife[name] = all
		}
		maps.Copy(m.Kubeadm, one.Kubeadm)
		maps.Copy(m.RemovedGates, one.RemovedGates)
		maps.Copy(m.RemovedArguments, one.RemovedArguments)
	}
	return m
}

// resolver looks up components for one cluster.
type resolver struct {
	*catalogfile.Catalog
	cluster *manifest.Cluster
}

func newResolver(c *manifest.Cluster) (resolver, error) {
	k, err := c.Base, error(nil)
	if k == nil {
		k, err = builtin()
	}
	if err != nil {
		return resolver{}, err
	}
	if len(c.Catalogs) > 0 {
		k = merged(append([]*catalogfile.Catalog{k}, c.Catalogs...)...)
	}
	return resolver{k, c}, nil
}

func (r resolver) component(name string) (catalogfile.CatalogEntry, error) {
	one, ok := r.Components[name]
	if !ok {
		return catalogfile.CatalogEntry{}, fmt.Errorf("component %q is not in the catalog; known: %s", name,
			names(r.Components))
	}
	return one, nil
}

// Items returns the items of a cluster's need: a file, perhaps several for different platforms, or images, or a chart.
// It checks neither versions nor platforms; see Resolve.
func Items(c *manifest.Cluster, need manifest.Need) (Additions, error) {
	r, err := newResolver(c)
	if err != nil {
		return Additions{}, err
	}
	return r.items(need)
}

// Refs returns the io.kkbundle.ref of each item of a need in a bundle: one, several for a component with several
// images, or none if only its chart knows them. The platform matters for files only; a file without that platform is an
// error.
func Refs(c *manifest.Cluster, need manifest.Need, platform scalar.Platform) ([]string, error) {
	items, err := Items(c, need)
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, f := range items.Files {
		if fits(f.Platforms, platform) {
			refs = append(refs, manifest.FileURL(f, platform))
		}
	}
	for _, image := range items.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	for _, chart := range items.Charts {
		refs = append(refs, manifest.ChartRef(chart, chart.Name, chart.Version))
	}
	if need.Kind == manifest.ItemFile && len(refs) == 0 {
		return nil, fmt.Errorf("%s %s is not published for %s", need.Kind, need.Name, platform)
	}
	return refs, nil
}

// FormerRef returns the reference of a need's file in bundles of earlier releases of kkbundle, "" if it is as Ref says.
func FormerRef(c *manifest.Cluster, need manifest.Need, platform scalar.Platform) (string, error) {
	r, err := newResolver(c)
	if err != nil {
		return "", err
	}
	one, err := r.component(need.Name)
	if err != nil || need.Kind != manifest.ItemFile || one.File == nil || one.File.Formerly == nil {
		return "", err
	}
	version, err := r.version(need.Name)
	if err != nil {
		return "", err
	}
	former := formerFile(*one.File)
	one.File = &former
	for _, f := range files(need.Name, one, version) {
		if fits(f.Platforms, platform) {
			return manifest.FileURL(f, platform), nil
		}
	}
	return "", nil
}

// Ref returns the reference of a need with a single item, like Refs.
func Ref(c *manifest.Cluster, need manifest.Need, platform scalar.Platform) (string, error) {
	refs, err := Refs(c, need, platform)
	if err == nil && len(refs) != 1 {
		return "", fmt.Errorf("component %s has %d images in the catalog", need.Name, len(refs))
	}
	if err != nil {
		return "", err
	}
	return refs[0], nil
}

// ImageRef returns the fully qualified reference of a component with a single image.
func ImageRef(c *manifest.Cluster, name string) (string, error) {
	return Ref(c, manifest.Need{Kind: manifest.ItemImage, Name: name}, "")
}

// Version returns a component's version in the cluster: its own entry under components, or cri.version for the runtime
// and cni.version for the network, or the version that matches its Kubernetes, or the catalog's default.
func Version(c *manifest.Cluster, name string) (string, error) {
	r, err := newResolver(c)
	if err != nil {
		return "", err
	}
	return r.version(name)
}

// Newest returns the newest Kubernetes checked against kkbundle's own catalog, vMAJOR.MINOR.PATCH.
func Newest() (string, error) {
	k, err := builtin()
	if err != nil {
		return "", err
	}
	newest := newestOf(k.Releases)
	if newest == nil {
		return "", errors.New("read the catalog: it has no release of Kubernetes")
	}
	return "v" + newest.String(), nil
}

func newestOf(releases map[string]string) *semver.Version {
	var newest *semver.Version
	for _, text := range releases {
		if v, err := semver.NewVersion(text); err == nil && (newest == nil || v.GreaterThan(newest)) {
			newest = v
		}
	}
	return newest
}

// fits reports whether a file or image published for some platforms runs on one; no platforms means all.
func fits(published []string, platform scalar.Platform) bool {
	return len(published) == 0 || slices.ContainsFunc(scalar.RunsOn(platform),
		func(p scalar.Platform) bool { return slices.Contains(published, p) })
}

func names[T any](m map[string]T) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
