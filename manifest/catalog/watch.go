package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A Watch is a version in a catalog, with an item whose newer versions upstream lists.
type Watch struct {
	// Component is its name, or kubernetes for a line of releases.
	Component string
	// Since is the key of the component's table, or the line of Kubernetes; "" for its default.
	Since   string
	Version string
	// Pin names the item. Its Ref is "" if upstream publishes no list that this program can read.
	Pin manifest.Pin
}

// Merged returns the program's catalog with the entries of others, as clusters that name them see it.
func Merged(others ...*catalogfile.Catalog) (*catalogfile.Catalog, error) {
	k, err := builtin()
	if err != nil {
		return nil, err
	}
	return merged(append([]*catalogfile.Catalog{k}, others...)...), nil
}

// Watches returns the versions of a catalog that have newer patch releases at some time, sorted: its releases of
// Kubernetes, and the versions of components that no other component decides. The versions of etcd, coredns and pause
// are kubeadm's, and those of components that follow another are that one's.
func Watches(k *catalogfile.Catalog) []Watch {
	var list []Watch
	for _, line := range slices.Sorted(maps.Keys(k.Releases)) {
		w := Watch{Component: kubernetes, Since: line, Version: k.Releases[line]}
		if one, ok := k.Components["kubeadm"]; ok && one.File != nil {
			w.Pin = filePin("kubeadm", one, w.Version)
		}
		list = append(list, w)
	}
	for _, name := range slices.Sorted(maps.Keys(k.Components)) {
		one := k.Components[name]
		if one.Follows != "" || isKubeadms(name) {
			continue
		}
		if one.Default != "" {
			list = append(list, watch(name, "", one, one.Default))
			continue
		}
		for _, since := range slices.Sorted(maps.Keys(one.Since)) {
			list = append(list, watch(name, since, one, one.Since[since]))
		}
	}
	return list
}

// isKubeadms reports whether kubeadm decides a component's version.
func isKubeadms(name string) bool { return slices.Contains(catalogfile.KubeadmComponents(), name) }

// watch prefers a release's own file, whose address holds the version, to the tags of an image: a tag can exist
// before the release.
func watch(name, since string, one catalogfile.CatalogEntry, version string) Watch {
	w := Watch{Component: name, Since: since, Version: version}
	const release = "/releases/download/{version}/"
	switch {
	case one.File != nil && (one.File.Stable != "" || strings.Contains(firstURL(*one.File), release)):
		w.Pin = filePin(name, one, version)
	case one.Chart != nil && strings.Contains(one.Chart.URL, release):
		w.Pin = manifest.Pin{Kind: manifest.ItemFile, Name: name, Version: version, Ref: chart(name, one, version).URL}
	case len(one.Images) > 0 && strings.HasSuffix(one.Images[0].Name, ":{version}"):
		images, _ := images(name, one, version)
		w.Pin = manifest.Pin{
			Kind: manifest.ItemImage, Name: strings.TrimSuffix(images[0].Name, ":"+version),
			Version: version, Ref: images[0].Name,
		}
	}
	return w
}

func firstURL(f catalogfile.CatalogFile) string {
	for _, platform := range slices.Sorted(maps.Keys(f.URL)) {
		return f.URL[platform]
	}
	return ""
}

func filePin(name string, one catalogfile.CatalogEntry, version string) manifest.Pin {
	pin := manifest.Pin{Kind: manifest.ItemFile, Name: name, Version: version}
	all := files(name, one, version)
	if len(all) == 0 {
		return pin
	}
	platform := scalar.Platform("linux/amd64")
	if len(all[0].Platforms) > 0 {
		platform = all[0].Platforms[0]
	}
	pin.Ref = manifest.FileURL(all[0], platform)
	return pin
}

// A Change is a newer version for a Watch.
type Change struct {
	Component, Since, From, To string
}

// Apply returns a catalog file with the changes over k, and the entries of own. It holds the changed entries whole,
// since an entry replaces the one of the same name.
func Apply(k, own *catalogfile.Catalog, changes []Change) *catalogfile.Catalog {
	out := &catalogfile.Catalog{Releases: map[string]string{}, Components: map[string]catalogfile.CatalogEntry{}}
	if own != nil {
		*out = *own
		out.Releases, out.Components = orEmpty(own.Releases), orEmpty(own.Components)
	}
	for _, c := range changes {
		if c.Component == kubernetes {
			out.Releases[c.Since] = c.To
			continue
		}
		one, ok := out.Components[c.Component]
		if !ok {
			one = k.Components[c.Component]
		}
		if c.Since == "" {
			one.Default = c.To
		} else {
			one.Since = maps.Clone(one.Since)
			one.Since[c.Since] = c.To
		}
		out.Components[c.Component] = one
	}
	return out
}

func orEmpty[T any](m map[string]T) map[string]T {
	if m == nil {
		return map[string]T{}
	}
	return maps.Clone(m)
}

// EndOfLife returns the last day of upstream's support for an item, as 2026-06-28, "" if none is known. Images are
// compared with those of the catalog, files by the component's name.
func EndOfLife(pin manifest.Pin) (string, error) {
	k, err := builtin()
	if err != nil {
		return "", err
	}
	name := pin.Name
	if pin.Kind == manifest.ItemImage {
		name = imageOwner(k, pin.Name)
	}
	one, ok := k.Components[name]
	v, bad := semver.NewVersion(pin.Version)
	if !ok || bad != nil {
		return "", nil //nolint:nilerr // other version schemes have no lines
	}
	if leaderOf(one) == kubernetes && len(one.Since) == 0 && one.Default == "" {
		name = kubernetes
	}
	return k.EndOfLife[cmp.Or(name, kubernetes)][lineOf(v)], nil
}

// imageOwner returns the component with an image of this repository, "" if there is none.
func imageOwner(k *catalogfile.Catalog, repository string) string {
	for _, name := range slices.Sorted(maps.Keys(k.Components)) {
		for _, image := range k.Components[name].Images {
			if own, _, _ := strings.Cut(image.Name, ":{"); own == repository {
				return name
			}
		}
	}
	return ""
}
