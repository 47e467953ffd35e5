package manifest

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Closure selects how many dependencies of packages are included.
type Closure string

// The closures; an empty one is ClosureBase.
const (
	// ClosureBase leaves out the packages of every system of the distribution: those essential or required there.
	ClosureBase Closure = "base"
	// ClosureFull leaves nothing out.
	ClosureFull Closure = "full"
)

// PackageSet is a set of operating system packages with all their dependencies.
type PackageSet struct {
	Distribution string `yaml:"distribution" kk:"required" doc:"Distribution and version, such as debian/12."`
	// Install lists names, or NAME=VERSION. If empty, all packages of an ISO are included; else AddPackages must add
	// some.
	Install []string `yaml:"install,omitempty" doc:"Package names, or NAME=VERSION; their dependencies are added."`
	Roles   bool     `yaml:"roles,omitempty" doc:"Adds the packages that the cluster's tasks need on this distribution."`
	Closure Closure  `yaml:"closure,omitempty" enum:"base,full" doc:"base (default): dependencies except those that every system of the distribution has; full: all of them."`
	// Recommends includes recommended packages.
	Recommends bool `yaml:"recommends,omitempty" doc:"Include recommended packages."`
	// Repositories are used in addition to the distribution's known ones.
	Repositories []Repository `yaml:"repositories,omitempty" doc:"Repositories in addition to the distribution's own."`
	// OnlyRepositories excludes the known ones.
	OnlyRepositories bool `yaml:"onlyRepositories,omitempty" doc:"Use only the repositories named here."`
	// Keyring is for the known repositories.
	Keyring string `yaml:"keyring,omitempty" local:"machine" doc:"OpenPGP keys of the distribution. Default its own file on the build machine, in /usr/share/keyrings or /etc/pki/rpm-gpg."`
	// AllowUnsigned accepts the known repositories without checking a signature.
	AllowUnsigned bool `yaml:"allowUnsigned,omitempty" doc:"Accept the distribution's own repositories without checking signatures; the lock says unsigned."`
	// AllowExpired accepts expired metadata, and signatures of expired keys.
	AllowExpired bool `yaml:"allowExpired,omitempty" doc:"Accept expired metadata, as of a snapshot."`
	// ISO is the path of a disk image with a repository; then nothing else is used.
	ISO string `yaml:"iso,omitempty" local:"machine" doc:"Path of a disk image with a repository, instead of all other repositories."`
	// SHA256 is the expected digest of ISO.
	SHA256 string `yaml:"sha256,omitempty" doc:"Expected sha256 of the image."`
	// Platforms replace the bundle's for this set.
	Platforms []string `yaml:"platforms,omitempty" doc:"The platforms of these packages, instead of the bundle's."`
	Group     string   `yaml:"group,omitempty" doc:"Group of these packages; the packages of a cluster have none."`
}

// Repository is a package repository: of apt if it has a suite, else of dnf.
type Repository struct {
	URL        string   `yaml:"url" kk:"required" doc:"https://…; {arch} and {x86arch} stand for those of each platform."`
	Suite      string   `yaml:"suite,omitempty" doc:"For apt: the suite, such as bookworm; with a slash at its end a flat repository's directory, such as ./."`
	Components []string `yaml:"components,omitempty" doc:"For apt: the components, such as main."`
	Keyring    string   `yaml:"keyring,omitempty" local:"machine" doc:"OpenPGP keys that sign it."`
	// AllowUnsigned accepts the repository without checking a signature.
	AllowUnsigned bool `yaml:"allowUnsigned,omitempty" doc:"Accept the repository without checking signatures; the lock says unsigned."`
}

// packagesPrefix begins the references of packages.
const packagesPrefix = "packages/"

// PackageRef returns the reference of a package's file: all packages of a distribution share a directory, from which
// apt and dnf install them.
func PackageRef(distribution, file string) string { return packagesPrefix + distribution + "/" + file }

// IsPackageRef reports whether a reference is that of a package.
func IsPackageRef(ref string) bool { return strings.HasPrefix(ref, packagesPrefix) }

// PackageDistribution returns the distribution in a package's reference, and false for any other reference.
func PackageDistribution(ref string) (distribution string, ok bool) {
	file, ok := strings.CutPrefix(ref, packagesPrefix)
	return path.Dir(file), ok
}

// imageScheme begins the addresses of files in disk images.
const imageScheme = "iso:"

// PackageInImage returns the address of a file in a disk image, a path relative to the manifest.
func PackageInImage(image, file string) string {
	return imageScheme + url.PathEscape(image) + "/" + strings.TrimPrefix(file, "/")
}

// ImageOfPackage splits an address of PackageInImage.
func ImageOfPackage(address string) (image, file string, ok bool) {
	rest, ok := strings.CutPrefix(address, imageScheme)
	escaped, file, found := strings.Cut(rest, "/")
	image, err := url.PathUnescape(escaped)
	return image, file, ok && found && err == nil
}

// AddPackages adds the packages needed by the tasks of a cluster to every set that asks for them: sets with Roles,
// which it resets, and sets without names. names returns the packages for a distribution, such as debian/12. The error
// is Problems, one for each set for which names fails.
func (b *Bundle) AddPackages(names func(distribution string) ([]string, error)) error {
	c := checkerOf(b.src)
	for i := range b.Packages {
		set := &b.Packages[i]
		if !set.Roles && (len(set.Install) > 0 || set.WholeImage()) {
			continue
		}
		if set.Group != "" {
			c.Add(document.Join(document.Index("packages", i), "group"),
				"the cluster's tasks need these packages at every site; leave group out")
			continue
		}
		more, err := names(set.Distribution)
		if err != nil {
			c.Add(document.Index("packages", i),
				"what the cluster's tasks need on %s is not known: %v; name packages under install and leave roles out",
				set.Distribution, err)
			continue
		}
		set.Install = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(set.Install), more...))))
		set.Roles = false
	}
	return c.Found.Err()
}

// WholeImage reports whether all packages of an ISO are included, whatever it has.
func (p PackageSet) WholeImage() bool { return p.ISO != "" && len(p.Install) == 0 && !p.Roles }

// packageChecker checks operating system packages.
type packageChecker struct{ *checker }

func (c packageChecker) packages(list []PackageSet) {
	for i := range list {
		set := &list[i]
		path := document.Index("packages", i)
		if name, version, ok := strings.Cut(set.Distribution, "/"); set.Distribution != "" &&
			(!ok || !document.IsName(name, true) || !scalar.IsToken(version)) {
			c.Add(document.Join(path, "distribution"), "%q: want distribution and version, such as debian/12",
				document.Shorten(set.Distribution))
		}
		for j, name := range set.Install {
			if !scalar.IsPackageName(name) {
				c.Add(document.Index(document.Join(path, "install"), j), "%q is not a package name",
					document.Shorten(name))
			} else if slices.Index(set.Install, name) < j {
				c.Add(document.Index(document.Join(path, "install"), j), "%s is there twice", document.Shorten(name))
			}
		}
		c.Platforms(document.Join(path, "platforms"), set.Platforms)
		c.packageGroup(path, set, list)
		c.packageImage(path, set)
		c.packageKeys(path, set)
		if set.OnlyRepositories && len(set.Repositories) == 0 {
			c.Add(document.Join(path, "onlyRepositories"), "there are no repositories here; name them")
		}
		for j, r := range set.Repositories {
			c.repository(document.Index(document.Join(path, "repositories"), j), r)
		}
	}
}

// packageGroup refuses a group that other sets of the distribution do not have: all packages of a distribution are in
// one repository, which a selection has or lacks as a whole.
func (c *checker) packageGroup(path string, set *PackageSet, list []PackageSet) {
	at := slices.IndexFunc(list, func(o PackageSet) bool {
		return o.Distribution == set.Distribution && o.Group != set.Group
	})
	if set.Group != "" && at >= 0 {
		c.Add(document.Join(path, "group"), "all packages of %s are in the same groups, and %s has another; give both the same, or none",
			document.Shorten(set.Distribution), document.Index("packages", at))
	}
}

// packageKeys checks the settings for signatures of the known repositories.
func (c *checker) packageKeys(path string, set *PackageSet) {
	switch {
	case set.AllowUnsigned && set.Keyring != "":
		c.Add(path, "has keyring and allowUnsigned; keep one")
	case set.AllowUnsigned && set.ISO != "":
		c.Add(document.Join(path, "allowUnsigned"),
			"is for repositories; an image vouches for its packages, and sha256 for the image")
	case set.AllowUnsigned && set.OnlyRepositories:
		c.Add(document.Join(path, "allowUnsigned"),
			"is for the distribution's own repositories, which onlyRepositories leaves out; write it under repositories")
	}
}

func (c packageChecker) packageImage(path string, set *PackageSet) {
	if set.ISO == "" {
		if set.SHA256 != "" {
			c.Add(document.Join(path, "sha256"), "belongs to iso, which is missing")
		}
		return
	}
	if strings.Contains(set.ISO, "://") {
		c.Add(document.Join(path, "iso"), "%q: want a path of this machine; fetch the image first",
			document.Shorten(set.ISO))
	}
	if len(set.Repositories) > 0 {
		c.Add(path, "has iso and repositories; keep one, or write two entries")
	}
	if set.SHA256 = strings.ToLower(set.SHA256); set.SHA256 != "" && !scalar.IsHex(set.SHA256, 64) {
		c.Add(document.Join(path, "sha256"), "%q is not a sha256; write 64 hexadecimal digits",
			document.Shorten(set.SHA256))
	}
}

// mirrorList refuses what only dnf and yum understand: lists of mirrors, and variables.
func (c packageChecker) mirrorList(path, address string) {
	before, _, hasQuery := strings.Cut(address, "?")
	last := before[strings.LastIndexByte(before, '/')+1:]
	switch {
	case strings.Contains(address, "$"):
		c.Add(path, "variables of dnf and yum are not known here; write {x86arch} for $basearch, and the release itself")
	case hasQuery, slices.Contains([]string{"mirrorlist", "metalink"}, last):
		c.Add(path, "is the address of a list of mirrors (mirrorlist, metalink), or has a query; write the address of one repository: the list has some, and so has baseurl of the .repo file")
	}
}

func (c packageChecker) repository(path string, r Repository) {
	if r.URL != "" {
		c.Address(document.Join(path, "url"), r.URL, "https", "http")
		for _, inside := range []string{"/dists", "/repodata", "/repodata/repomd.xml"} {
			if strings.HasSuffix(strings.TrimSuffix(r.URL, "/"), inside) {
				c.Add(document.Join(path, "url"), "a repository is the directory above; leave out %s", inside)
			}
		}
		c.mirrorList(document.Join(path, "url"), r.URL)
	}
	switch {
	case r.Suite == "" && len(r.Components) > 0:
		c.Add(document.Join(path, "components"), "need a suite, which is missing")
	case r.Suite != "" && !strings.HasSuffix(r.Suite, "/") && len(r.Components) == 0:
		c.Add(path, "has no components; write those that you want, such as main")
	case r.AllowUnsigned && r.Keyring != "":
		c.Add(path, "has keyring and allowUnsigned; keep one")
	case r.Keyring == "" && !r.AllowUnsigned:
		c.Add(path, "has no keyring; name the keys that sign it, or write allowUnsigned: true")
	}
	if strings.ContainsAny(r.Suite, " ?#{}\\") || strings.Contains("/"+r.Suite, "/../") {
		c.Add(document.Join(path, "suite"), "%q is not a suite", document.Shorten(r.Suite))
	}
}
