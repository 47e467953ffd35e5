package closure

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// kindPackage is the kind of needs for packages, whose file names are the distributions' choice.
const kindPackage = "package"

// packageName returns the name of a package in needs.
func packageName(distribution, name string) string { return name + " of " + distribution }

// packages returns the names of the item in needs.
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

// OfPackages returns the operating system packages that the tasks of an installation need, for the operating systems
// and platforms in the manifest. An image that is taken whole, or a distribution without names in the catalog, gives no
// needs.
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
		for _, phase := range plan.Plan(c) {
			for _, task := range phase.Tasks {
				names, err := catalog.Packages(c, task.Packages, set.Distribution)
				if err != nil {
					errs = append(errs, fmt.Errorf("task %s: %w", task.Name, err))
				}
				for _, name := range names {
					needs = append(needs, Need{
						Kind: kindPackage, Name: packageName(set.Distribution, name),
						Platforms: platforms, By: User{Task: task.Name, Roles: task.Roles},
					})
				}
			}
		}
	}
	return needs, errors.Join(errs...)
}

// OfSets returns needs for the packages of the manifest's distributions: those that the manifest names, and their
// dependencies, which only the distribution's own lists tell.
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
