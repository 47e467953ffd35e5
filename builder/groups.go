package builder

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A membership collects the groups of an item from the places that need it. A place without a group makes the item
// part of every selection.
type membership struct {
	always bool
	names  []string
}

func (m *membership) add(group string) {
	if group == "" {
		m.always = true
	} else if !slices.Contains(m.names, group) {
		m.names = append(m.names, group)
	}
}

func memberOf(group string) *membership {
	m := &membership{}
	m.add(group)
	return m
}

// all returns the groups to add elsewhere: "" for a part of every selection.
func (m *membership) all() []string {
	if m == nil || m.always {
		return []string{""}
	}
	return m.names
}

// groups returns the names, sorted; none for an item of every selection.
func (m *membership) groups() []string {
	if m == nil || m.always {
		return nil
	}
	return slices.Sorted(slices.Values(m.names))
}

// memberships are those of items, by a key.
type memberships map[string]*membership

func (m memberships) add(key, group string) {
	if m[key] == nil {
		m[key] = &membership{}
	}
	m[key].add(group)
}

// setGroups writes the groups of images, charts, files and packages into a lock. Referrers go with their images.
func (f *finder) setGroups(l *manifest.Lock) {
	if len(f.Manifest.Groups) == 0 {
		return
	}
	for _, image := range f.Manifest.Images {
		if ref, err := image.Ref(); err == nil {
			f.seen.members.add(manifest.ItemImage+" "+ref, image.Group)
		}
	}
	for _, file := range f.Manifest.Files {
		for _, platform := range file.PlatformsIn(f.Manifest.Platforms) {
			f.seen.members.add(manifest.ItemFile+" "+manifest.FileURL(file, platform), file.Group)
		}
	}
	for _, r := range f.Manifest.Git {
		f.seen.members.add(manifest.ItemGit+" "+r.Ref(), r.Group)
	}
	packages := memberships{}
	for _, set := range f.Manifest.Packages {
		packages.add(set.Distribution, set.Group)
	}
	for i := range l.Items {
		pin := &l.Items[i]
		if distribution, ok := manifest.PackageDistribution(pin.Ref); ok && pin.Kind == manifest.ItemFile {
			pin.Groups = packages[distribution].groups()
		} else {
			pin.Groups = f.seen.members[pin.Kind+" "+pin.Ref].groups()
		}
	}
}

// chartMembers records the groups of charts.
func (f *finder) chartMembers(list []fetch.Chart) {
	for _, c := range list {
		f.seen.members.add(manifest.ItemChart+" "+c.Pin.Ref, c.Chart.Group)
	}
}

// imageMembers records the groups of a place in which images were found.
func (f *findings) imageMembers(images []discover.Image, of *membership) {
	for _, image := range images {
		ref, err := scalar.ImageName(image.Ref)
		if err != nil {
			continue // resolving it reports the problem
		}
		for _, group := range of.all() {
			f.members.add(manifest.ItemImage+" "+ref, group)
		}
	}
}

// itemGroups returns the groups of a lock's items, by kind and reference.
func itemGroups(l *manifest.Lock) map[[2]string][]string {
	list := map[[2]string][]string{}
	for _, pin := range l.Items {
		if len(pin.Groups) > 0 {
			list[[2]string{pin.Kind, pin.Ref}] = pin.Groups
		}
	}
	return list
}

// unknownGroups refuses groups of addons that the manifest does not define.
func (p *Project) unknownGroups() error {
	known := slices.Sorted(maps.Keys(p.Manifest.Groups))
	var errs []error
	for _, c := range p.clusters {
		errs = append(errs, c.UnknownGroups(known))
	}
	return errors.Join(errs...)
}

// groupTable returns the groups of the manifest as its bundle names them.
func (p *Project) groupTable() (t groups.Table) {
	for name, g := range p.Manifest.Groups {
		t = append(t, groups.Group{Name: name, Description: g.Description, Optional: g.Optional})
	}
	slices.SortFunc(t, func(a, b groups.Group) int { return strings.Compare(a.Name, b.Name) })
	return t
}

// documentGroups returns the groups of a document: those of a file of YAML that the manifest names. Files of
// kustomizations are in every selection, because others may read them.
func (m matched) documentGroups(d bundle.Document) []string {
	one, ok := m.members[d.Ref]
	if !ok || slices.ContainsFunc(m.dirs, func(dir string) bool { return dir == "." || strings.HasPrefix(d.Ref, dir+"/") }) {
		return nil
	}
	return one.groups()
}
