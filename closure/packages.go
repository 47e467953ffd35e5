package closure

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// kindPackage is the kind of needs for packages, which are files whose names are the distributions' business.
const kindPackage = "package"

// packageName is how needs name a package.
func packageName(distribution, name string) string { return name + " of " + distribution }

// packages are the names that needs have for the item.
func (it Item) packages() []string {
	distribution, ok := manifest.PackageDistribution(it.Ref)
	if !ok {
		return nil
	}
	names := make([]string, len(it.Packages))
	for i, name := range it.Packages {
		names[i] = packageName(distribution, name)
	}
	return names
}

// OfPackages returns what the tasks of an installation of the cluster ask of the operating systems that the manifest has packages
// for, on the platforms that it has them for. Nothing is asked of an image that is taken whole, and of a distribution that the
// catalog has no names for.
func OfPackages(c *manifest.Cluster, b *manifest.Bundle) ([]Need, error) {
	var needs []Need
	var errs []error
	for _, set := range b.Packages {
		if set.WholeImage() || !catalog.KnowsDistribution(set.Distribution) {
			continue
		}
		platforms := set.Platforms
		if len(platforms) == 0 {
			platforms = b.Platforms
		}
		for _, phase := range installer.Plan(c) {
			for _, task := range phase.Tasks {
				names, err := catalog.Packages(c, task.Packages, set.Distribution)
				if err != nil {
					errs = append(errs, fmt.Errorf("task %s: %w", task.Name, err))
				}
				for _, name := range names {
					needs = append(needs, Need{Kind: kindPackage, Name: packageName(set.Distribution, name), Platforms: platforms, By: User{Task: task.Name, Roles: task.Roles}})
				}
			}
		}
	}
	return needs, errors.Join(errs...)
}

// OfSets returns needs for the packages that are there because the manifest has packages of their distribution: those that it
// names, and what they depend on, which only the distribution's own lists say.
func OfSets(b *manifest.Bundle, there []Item) []Need {
	var needs []Need
	for _, it := range there {
		distribution, ok := manifest.PackageDistribution(it.Ref)
		i := slices.IndexFunc(b.Packages, func(s manifest.PackageSet) bool { return s.Distribution == distribution })
		if ok && i >= 0 {
			by := User{Place: discover.Place{Source: "manifest", Path: "packages of " + distribution}}
			needs = append(needs, Need{Kind: it.Kind, Ref: it.Ref, By: by})
		}
	}
	return needs
}
