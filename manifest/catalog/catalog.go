// Package catalog knows where the components of a cluster are published: the files, images and charts, and which
// versions go with which Kubernetes. What it knows is data (data/*.yaml, and the files that a cluster names); a version
// that is not listed resolves through the same templates, so a patch release of tomorrow needs no new kkbundle.
//
// The package is pure: it opens no connection. Build puts what Resolve returns into a bundle; install finds it there by
// Refs, from the same cluster file.
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
)

//go:embed data/*.yaml
var data embed.FS

// builtin reads the embedded data once, at first use.
var builtin = sync.OnceValues(func() (*manifest.Catalog, error) { //nolint:gochecknoglobals // what it holds does not change
	entries, err := data.ReadDir("data")
	if err != nil {
		return nil, err
	}
	var all []*manifest.Catalog
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
func merged(all ...*manifest.Catalog) *manifest.Catalog {
	m := &manifest.Catalog{
		Releases: map[string]string{}, Components: map[string]manifest.CatalogEntry{},
		Packages: map[string]manifest.CatalogPackage{}, Zones: map[string][]manifest.Source{},
	}
	for _, one := range all {
		maps.Copy(m.Releases, one.Releases)
		maps.Copy(m.Components, one.Components)
		maps.Copy(m.Packages, one.Packages)
		maps.Copy(m.Zones, one.Zones)
	}
	return m
}

// Builtin returns kkbundle's own catalog. It is shared, and not to be changed.
func Builtin() (*manifest.Catalog, error) { return builtin() }

// resolver looks components up for one cluster.
type resolver struct {
	*manifest.Catalog
	cluster *manifest.Cluster
}

func newResolver(c *manifest.Cluster) (resolver, error) {
	k, err := builtin()
	if err != nil {
		return resolver{}, err
	}
	if len(c.Catalogs) > 0 {
		k = merged(append([]*manifest.Catalog{k}, c.Catalogs...)...)
	}
	return resolver{k, c}, nil
}

func (r resolver) component(name string) (manifest.CatalogEntry, error) {
	one, ok := r.Components[name]
	if !ok {
		return manifest.CatalogEntry{}, fmt.Errorf("component %q is not in the catalog; known: %s", name, names(r.Components))
	}
	return one, nil
}

// Items returns what a cluster's need stands for: a file, perhaps several for different platforms, or images, or a chart. It
// checks nothing about versions and platforms; see Resolve.
func Items(c *manifest.Cluster, need manifest.Need) (Additions, error) {
	r, err := newResolver(c)
	if err != nil {
		return Additions{}, err
	}
	return r.items(need)
}

// Refs returns the io.kkbundle.ref under which a bundle has each item of what a cluster needs: one, several where a
// component has several images, or none where only its chart knows them. The platform matters for files only; it is an error
// if there is none for it.
func Refs(c *manifest.Cluster, need manifest.Need, platform manifest.Platform) ([]string, error) {
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

// Ref returns the reference of what has one item, as Refs does.
func Ref(c *manifest.Cluster, need manifest.Need, platform manifest.Platform) (string, error) {
	refs, err := Refs(c, need, platform)
	if err == nil && len(refs) != 1 {
		return "", fmt.Errorf("component %s has %d images in the catalog", need.Name, len(refs))
	}
	if err != nil {
		return "", err
	}
	return refs[0], nil
}

// ImageRef returns the fully qualified reference of the image of a component that has one.
func ImageRef(c *manifest.Cluster, name string) (string, error) {
	return Ref(c, manifest.Need{Kind: manifest.ItemImage, Name: name}, "")
}

// Version returns a component's version as the cluster has it: its own entry under components, or cri.version for the
// runtime and cni.version for the network, or what goes with its Kubernetes, or the catalog's default.
func Version(c *manifest.Cluster, name string) (string, error) {
	r, err := newResolver(c)
	if err != nil {
		return "", err
	}
	return r.version(name)
}

// Newest returns the newest Kubernetes that kkbundle's own catalog was checked against, vMAJOR.MINOR.PATCH.
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

// fits tells whether a file or image that is published for some platforms runs on one; none stands for all.
func fits(published []string, platform manifest.Platform) bool {
	return len(published) == 0 || slices.ContainsFunc(manifest.RunsOn(platform), func(p manifest.Platform) bool { return slices.Contains(published, p) })
}

func names[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
