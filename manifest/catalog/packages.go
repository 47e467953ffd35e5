package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// Packages returns a distribution's names of the packages for the given purposes (conntrack, nfs-client, …), sorted and
// without duplicates. The distribution is written as in a manifest, such as debian/12. The error joins the unknown
// purposes, or reports an unknown distribution.
func Packages(c *manifest.Cluster, purposes []string, distribution string) ([]string, error) {
	r, err := newResolver(c)
	if err != nil {
		return nil, err
	}
	id, _, _ := strings.Cut(distribution, "/")
	pick, err := family(id)
	if err != nil {
		return nil, err
	}
	var list, unknown []string
	for _, purpose := range purposes {
		one, ok := r.Packages[purpose]
		if !ok {
			unknown = append(unknown, purpose)
		}
		if own, ok := one.Releases[release(distribution)]; ok {
			list = append(list, own...)
			continue
		}
		list = append(list, pick(one)...)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("packages for %s are not in the catalog; known: %s", strings.Join(unknown, ", "),
			names(r.Packages))
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// release returns a distribution with its major version: rocky/10 of rocky/10.1.
func release(distribution string) string {
	id, version, _ := strings.Cut(distribution, "/")
	major, _, _ := strings.Cut(version, ".")
	return id + "/" + major
}

// KnowsDistribution reports whether the catalog has package names for a distribution, such as debian/12.
func KnowsDistribution(distribution string) bool {
	id, _, _ := strings.Cut(distribution, "/")
	_, err := family(id)
	return err == nil
}

// family returns the function that selects package names for a distribution, by its ID in /etc/os-release or its name
// in a manifest.
func family(id string) (func(catalogfile.CatalogPackage) []string, error) {
	debian := []string{"debian", "ubuntu"}
	rpm := []string{
		"almalinux", "amzn", "anolis", "centos", "centos-stream", "fedora", "kylin", "ol", "openeuler",
		"rhel", "rocky", "uos",
	}
	switch {
	case slices.Contains(debian, id):
		return func(p catalogfile.CatalogPackage) []string { return p.Debian }, nil
	case slices.Contains(rpm, id):
		return func(p catalogfile.CatalogPackage) []string { return p.RPM }, nil
	}
	return nil, fmt.Errorf("distribution %q is not known; known: %s", id, strings.Join(append(debian, rpm...), ", "))
}
