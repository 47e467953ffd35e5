package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// Additions are the items that a cluster adds to a bundle.
type Additions struct {
	Files  []manifest.File
	Images []manifest.Image
	Charts []manifest.Chart
	// Sources are the mirrors of the zone.
	Sources []sources.Source
	// Notes are assumptions about facts unknown to the catalog, a sentence each.
	Notes []string
}

// Options select platforms and mirrors.
type Options struct {
	// Platforms are the bundle's; none means all.
	Platforms []scalar.Platform
	// Zone selects mirrors; empty means upstream itself.
	Zone string
}

// Resolve returns the items that the demands of a cluster add to a bundle, sorted by name and without duplicates,
// including those of each release of an upgrade. The error joins everything unknown or incompatible, as Problems where
// the cluster file causes it.
func Resolve(c *manifest.Cluster, demands []manifest.Demand, o Options) (Additions, error) {
	r, err := newResolver(c)
	if err != nil {
		return Additions{}, err
	}
	var a Additions
	var errs []error
	a.Notes, err = r.check(demands)
	errs = append(errs, err)
	demands = slices.SortedFunc(slices.Values(demands), func(x, y manifest.Demand) int {
		return cmp.Or(strings.Compare(x.Kind, y.Kind), strings.Compare(x.Name, y.Name))
	})
	for _, d := range demands {
		err := r.add(&a, d, o.Platforms)
		if _, old := errors.AsType[*tooOldError](err); !old { // check has it
			errs = append(errs, err)
		}
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, r.addSteps(&a, demands, o.Platforms))
	}
	if o.Zone != "" {
		mirrors, ok := r.Zones[o.Zone]
		if !ok {
			errs = append(errs, fmt.Errorf("zone %q is not known; known: %s", o.Zone, names(r.Zones)))
		}
		a.Sources = slices.Clone(mirrors)
	}
	return a.unique(), errors.Join(errs...)
}

// add resolves one demand for the platforms of the bundle.
func (r resolver) add(a *Additions, d manifest.Demand, platforms []scalar.Platform) error {
	items, err := r.items(d.Need)
	if err != nil {
		return err
	}
	one := r.Components[d.Name]
	published := one.Platforms
	if d.Kind == manifest.ItemFile {
		published = filePlatforms(one)
	}
	var missing, there []string
	for _, p := range platforms {
		if fits(published, p) {
			there = append(there, p)
		} else {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		lacks := fmt.Sprintf("%s %s is published for %s and not for %s", d.Kind, d.Name, strings.Join(published, ", "),
			strings.Join(missing, ", "))
		if len(there) == 0 || !slices.Equal(d.Roles, []manifest.Role{manifest.RoleRegistry}) {
			return r.cluster.Problem(r.reason(d.Name), lacks+
				"; choose something else here, or leave the platform out of the manifest"+neededBy(d))
		}
		a.Notes = append(a.Notes, lacks+": hosts of the group image_registry have to be "+strings.Join(there, " or "))
	}
	for _, f := range items.Files {
		if len(platforms) == 0 {
			a.Files = append(a.Files, f)
		} else if f, ok := onlyFor(f, there, len(missing) == 0); ok {
			a.Files = append(a.Files, f)
		}
	}
	a.Images, a.Charts = append(a.Images, items.Images...), append(a.Charts, items.Charts...)
	a.Notes = append(a.Notes, items.Notes...)
	return nil
}

// onlyFor limits a file to platforms of the bundle. all means that it is published for every one of them, so a file
// with placeholders needs no platform list. It returns false if no platform is left.
func onlyFor(f manifest.File, platforms []scalar.Platform, all bool) (manifest.File, bool) {
	own := f.Platforms
	f.Platforms = slices.DeleteFunc(slices.Clone(platforms), func(p string) bool { return !fits(own, p) })
	if len(f.Platforms) == 0 {
		return f, false
	}
	everywhere := f
	everywhere.Platforms = nil
	if all && len(f.Platforms) == len(platforms) && everywhere.PerPlatform() {
		return everywhere, true
	}
	return f, true
}

// reason returns the path in the cluster file that requires a component.
func (r resolver) reason(name string) string {
	c := r.cluster
	for _, one := range [][2]string{
		{string(c.CNI.Type), "cni.type"},
		{string(c.CNI.With), "cni.with"},
		{string(c.CRI.Type), "cri.type"},
		{string(c.ImageRegistry.Type), "imageRegistry.type"},
	} {
		if one[0] == name {
			return one[1]
		}
	}
	if strings.HasPrefix(name, "k3s") {
		return "kubernetes.distribution"
	}
	return "components[" + name + "]"
}

func neededBy(d manifest.Demand) string {
	if len(d.Tasks) == 0 {
		return ""
	}
	return " (needed by " + strings.Join(d.Tasks, ", ") + ")"
}

// filePlatforms returns the published platforms of a component's file; none means all.
func filePlatforms(one catalogfile.CatalogEntry) []string {
	if _, all := one.File.URL[scalar.AllPlatforms]; all {
		return one.Platforms
	}
	return slices.Sorted(maps.Keys(one.File.URL))
}

// items returns the items of a need, for all platforms.
func (r resolver) items(need manifest.Need) (Additions, error) {
	one, err := r.component(need.Name)
	if err != nil {
		return Additions{}, err
	}
	version, err := r.version(need.Name)
	if err != nil {
		return Additions{}, err
	}
	var a Additions
	switch {
	case need.Kind == manifest.ItemFile && one.File != nil:
		a.Files = files(need.Name, one, version)
	case need.Kind == manifest.ItemImage && len(one.Images) > 0:
		a.Images, a.Notes = images(need.Name, one, version)
	case need.Kind == manifest.ItemChart && one.Chart != nil:
		if !isOlder(version, one.Chart.From) {
			a.Charts = []manifest.Chart{chart(need.Name, one, version)}
		}
	default:
		return Additions{}, fmt.Errorf("component %s %s has no %s in the catalog", need.Name, version, need.Kind)
	}
	return a, nil
}

// files returns the files of a version, by platform.
func files(name string, one catalogfile.CatalogEntry, version string) []manifest.File {
	file := fileOf(one, version)
	fill := filler(version)
	// Some servers read a plus in a path as a space; GitHub has k3s under %2B.
	address := func(template string) string { return filler(strings.ReplaceAll(version, "+", "%2B"))(template) }
	var list []manifest.File
	for _, platform := range slices.Sorted(maps.Keys(file.URL)) {
		f := manifest.File{
			Name: name, Version: fill(cmp.Or(file.Version, "{version}")),
			URL: address(file.URL[platform]), Checksums: address(file.Checksums), Mode: file.Mode,
			Platforms: slices.Clone(one.Platforms),
		}
		if platform != scalar.AllPlatforms {
			f.Platforms = []string{platform}
		}
		list = append(list, f)
	}
	return list
}

// fileOf returns the file of a component's version.
func fileOf(one catalogfile.CatalogEntry, version string) catalogfile.CatalogFile {
	file := *one.File
	if file.Formerly == nil {
		return file
	}
	have, haveErr := semver.NewVersion(version)
	first, firstErr := semver.NewVersion(file.Formerly.Before)
	if haveErr == nil && firstErr == nil && have.LessThan(first) {
		return formerFile(file)
	}
	return file
}

// formerFile returns the file before the present one.
func formerFile(file catalogfile.CatalogFile) catalogfile.CatalogFile {
	file.URL, file.Checksums, file.Formerly = file.Formerly.URL, file.Formerly.Checksums, nil
	return file
}

// images returns the images of a version, and a note for each that only the chart knows.
func images(name string, one catalogfile.CatalogEntry, version string) (list []manifest.Image, notes []string) {
	fill := filler(strings.ReplaceAll(version, "+", "-")) // a tag cannot have a plus
	for _, image := range one.Images {
		if isOlder(version, image.From) || image.Before != "" && !isOlder(version, image.Before) {
			continue
		}
		template := image.Name
		if len(image.Tags) > 0 {
			tag, known := image.Tags[version]
			if !known {
				repo, _, _ := strings.Cut(template, ":{tag}")
				notes = append(notes, fmt.Sprintf(
					"the catalog does not know which %s goes with %s %s; it is taken from where the chart names it",
					repo, name, version))
				continue
			}
			template = strings.ReplaceAll(template, "{tag}", tag)
		}
		list = append(list, manifest.Image{Name: fill(template)})
	}
	return list, notes
}

// isOlder reports whether a version is older than the first of something; with an empty first it is not. Other version
// schemes are not compared.
func isOlder(version, first string) bool {
	have, haveErr := semver.NewVersion(version)
	want, wantErr := semver.NewVersion(first)
	return haveErr == nil && wantErr == nil && have.LessThan(want)
}

func chart(name string, one catalogfile.CatalogEntry, version string) manifest.Chart {
	fill := filler(version)
	return manifest.Chart{
		Name: cmp.Or(one.Chart.Name, name), Repo: one.Chart.Repo, Version: fill(cmp.Or(one.Chart.Version, "{version}")),
		URL: filler(strings.ReplaceAll(version, "+", "%2B"))(one.Chart.URL),
	}
}

// A Step is an intermediate release of an upgrade: the cluster with it, and those of the cluster's demands that differ
// by release.
type Step struct {
	Cluster *manifest.Cluster
	Demands []manifest.Demand
	// Etcd is the version of etcd that the step takes because a later one must not be reached directly, "" for none.
	Etcd string
}

// Steps returns the releases between the hosts' present one and the cluster's, the newest known of each minor release,
// and before them one of the present minor release if its etcd must not go to the next one directly. There are none if
// the cluster file has no upgradeFrom.
func Steps(c *manifest.Cluster, demands []manifest.Demand) ([]Step, error) {
	r, err := newResolver(c)
	if err != nil || c.Kubernetes.UpgradeFrom == "" {
		return nil, err
	}
	versions, err := r.steps()
	if err != nil {
		return nil, err
	}
	var changing []manifest.Demand
	for _, d := range demands {
		if r.Components[d.Name].Follows == kubernetes {
			changing = append(changing, d)
		}
	}
	var steps []Step
	for _, version := range versions {
		steps = append(steps, Step{Cluster: c.At(version), Demands: changing})
	}
	return r.throughEtcd(steps, changing)
}

// addSteps adds the needs of an upgrade's steps.
func (r resolver) addSteps(a *Additions, demands []manifest.Demand, platforms []scalar.Platform) error {
	steps, err := Steps(r.cluster, demands)
	if err != nil {
		return err
	}
	var over []string
	for _, step := range steps {
		at := resolver{r.Catalog, step.Cluster}
		for _, d := range step.Demands {
			if err := at.add(a, d, platforms); err != nil {
				return err
			}
		}
		version := step.Cluster.Kubernetes.Version
		if step.Etcd != "" {
			version += " with etcd " + step.Etcd
		}
		over = append(over, version)
	}
	if len(over) > 0 {
		a.Notes = append(a.Notes,
			fmt.Sprintf("the way from Kubernetes %s to %s leads over %s, whose files and images are added",
				r.cluster.Kubernetes.UpgradeFrom, r.cluster.Kubernetes.Version, strings.Join(over, ", ")))
	}
	return nil
}

// steps returns the releases of an upgrade between its ends.
func (r resolver) steps() ([]string, error) {
	k := r.cluster.Kubernetes
	from, err := semver.NewVersion(k.UpgradeFrom)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.upgradeFrom %q: %w", k.UpgradeFrom, err)
	}
	to, err := semver.NewVersion(k.Version)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.version %q: %w", k.Version, err)
	}
	var steps []string
	for minor := from.Minor() + 1; minor < to.Minor(); minor++ {
		line := fmt.Sprintf("v%d.%d", to.Major(), minor)
		release, ok := r.Releases[line]
		if !ok {
			return nil, r.cluster.Problem("kubernetes.upgradeFrom",
				fmt.Sprintf("the way to %s leads over %s, of which the catalog knows no release; known: %s; write one under releases in a catalog of yours",
					k.Version, line, names(r.Releases)))
		}
		if _, build, found := strings.Cut(k.Version, "+"); found {
			release += "+" + build // K3s
		}
		steps = append(steps, release)
	}
	return steps, nil
}

// unique removes duplicates, which several demands and steps have.
func (a Additions) unique() Additions {
	a.Files = uniqueBy(a.Files, fileKey)
	a.Images = uniqueBy(a.Images, func(i manifest.Image) string { return i.Name })
	a.Charts = uniqueBy(a.Charts, chartKey)
	a.Notes = uniqueBy(a.Notes, func(s string) string { return s })
	return a
}

func uniqueBy[T any](list []T, key func(T) string) []T {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(one T) bool {
		k := key(one)
		defer func() { seen[k] = true }()
		return seen[k]
	})
}

func fileKey(f manifest.File) string { return f.URL + f.Path }

func chartKey(c manifest.Chart) string { return manifest.ChartRef(c, c.Name+c.Path, c.Version) }

// AddTo returns a copy of a bundle with the additions appended. Items of the manifest with the same reference stay
// unchanged, but they belong to no group: a cluster needs them at every site. The manifest's sources stay, too. An
// image that the manifest pins by digest has another reference than the cluster's, so both are kept; they share their
// content.
func (a Additions) AddTo(b *manifest.Bundle) (*manifest.Bundle, error) {
	out := *b
	out.Images, out.Charts = slices.Clone(b.Images), slices.Clone(b.Charts)
	out.Files, out.Sources = slices.Clone(b.Files), slices.Clone(b.Sources)
	own := map[string][]int{} // in out.Images
	for i, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		own[ref] = append(own[ref], i)
	}
	for _, image := range a.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		for _, i := range own[ref] {
			out.Images[i].Group = ""
		}
		if len(own[ref]) == 0 {
			out.Images = append(out.Images, image)
		}
	}
	for _, chart := range a.Charts {
		at := slices.IndexFunc(b.Charts, func(o manifest.Chart) bool { return chartKey(o) == chartKey(chart) })
		if at < 0 {
			out.Charts = append(out.Charts, chart)
		} else {
			out.Charts[at].Group = ""
		}
	}
	for _, f := range a.Files {
		at := slices.IndexFunc(b.Files, func(o manifest.File) bool { return fileKey(o) == fileKey(f) })
		if at < 0 {
			out.Files = append(out.Files, f)
		} else {
			out.Files[at].Group = ""
		}
	}
	for _, s := range a.Sources {
		if !slices.ContainsFunc(b.Sources, func(o sources.Source) bool { return strings.EqualFold(o.Host, s.Host) }) {
			out.Sources = append(out.Sources, s)
		}
	}
	return &out, nil
}
