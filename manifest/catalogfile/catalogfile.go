// Package catalogfile is the shape of a catalog: which components there are, where each comes from, which versions
// of them go together. Package catalog reads kkbundle's own and finds items in it.
package catalogfile

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// Kind is the kind of a catalog file.
const Kind = "Catalog"

// Catalog lists the addresses of cluster components, their versions compatible with each Kubernetes, and the package
// names of operating systems. One is part of kkbundle. A Cluster can name others, whose entries replace those of the
// same name.
type Catalog struct {
	APIVersion string `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string `yaml:"kind" kk:"required" doc:"Catalog"`
	// Releases has, by minor release of Kubernetes, the newest patch release that the entries were checked against.
	Releases   map[string]string       `yaml:"releases,omitempty" doc:"By minor release of Kubernetes, such as v1.36, the newest patch release that this catalog was checked against."`
	Components map[string]CatalogEntry `yaml:"components,omitempty" doc:"The components, by name. An entry replaces kkbundle's entry of that name."`
	// Kubeadm has, by release of Kubernetes, the images that its kubeadm asks for. They replace the versions of
	// components.
	Kubeadm map[string]KubeadmImages `yaml:"kubeadm,omitempty" doc:"By release of Kubernetes, such as v1.36.3, the tags of the images that its kubeadm asks for. They replace the versions under components."`
	// Packages are operating system packages by purpose.
	Packages map[string]CatalogPackage `yaml:"packages,omitempty" doc:"Operating system packages by purpose."`
	// EndOfLife has the day from which upstream mends a release line no more, by component and line.
	EndOfLife map[string]map[string]string `yaml:"endOfLife,omitempty" doc:"By component (or kubernetes) and release line, the last day of upstream's support, as 2026-06-28."`
	// RemovedGates has, by minor release of Kubernetes, the feature gates that it no longer has.
	RemovedGates map[string][]string `yaml:"removedGates,omitempty" doc:"By minor release of Kubernetes, such as v1.27, the feature gates that the release before still had."`
	// RemovedArguments has, by minor release of Kubernetes, the arguments that its programs no longer take.
	RemovedArguments map[string][]string `yaml:"removedArguments,omitempty" doc:"By minor release of Kubernetes, such as v1.27, the arguments that the release before still took, as PROGRAM --NAME or PROGRAM --NAME=WORD for one word of a list."`
	// Zones are mirrors that are used together.
	Zones map[string][]sources.Source `yaml:"zones,omitempty" doc:"Mirrors for manifests that name the zone."`

	src *document.Tree
}

// KubeadmImages are tags of the images that kubeadm of one release asks for, besides those of the release itself. A
// missing tag is that of the catalog.
type KubeadmImages struct {
	Etcd    string `yaml:"etcd,omitempty" doc:"Tag of registry.k8s.io/etcd."`
	CoreDNS string `yaml:"coredns,omitempty" doc:"Tag of registry.k8s.io/coredns/coredns."`
	Pause   string `yaml:"pause,omitempty" doc:"Tag of registry.k8s.io/pause."`
	// Program is the digest of the kubeadm that listed them, "" if none was asked.
	Program digest.Digest `yaml:"program,omitempty" doc:"Digest of the kubeadm that listed these images."`
	// Assumed is set for a release of a minor release that the catalog does not know, accepted by --assume.
	Assumed bool `yaml:"assumed,omitempty" doc:"The minor release is not known to the catalog, and was accepted with --assume."`
}

// KubeadmComponents returns the components of the catalog whose images kubeadm lists with a tag of its own.
func KubeadmComponents() []string { return []string{"coredns", "etcd", "pause"} }

// Tag returns the tag of one of KubeadmComponents, "" if it is not known.
func (k KubeadmImages) Tag(component string) string {
	return map[string]string{"coredns": k.CoreDNS, "etcd": k.Etcd, "pause": k.Pause}[component]
}

// CatalogEntry is one component: its addresses and its version. In addresses {version} is the version as written,
// {number} the same without a leading v, {core} its three numbers alone, {line} vMAJOR.MINOR, and {os}, {arch} and
// {x86arch} are the platform's.
type CatalogEntry struct {
	// Follows is the component whose version selects the entry of Since, or is used unchanged: kubernetes by default. A
	// component that follows kubernetes has its own version for every release of an upgrade.
	Follows string `yaml:"follows,omitempty" doc:"Component whose versions since lists, or, without since and default, whose version this one has. Components that follow kubernetes are added for each release of an upgrade. Default kubernetes."`
	Default string `yaml:"default,omitempty" doc:"The version, unless the cluster file names another."`
	// Since maps releases of the followed component to versions used from that release on.
	Since map[string]string `yaml:"since,omitempty" doc:"Versions by the first release that uses them, such as v1.36.0: 3.6.8-0."`
	File  *CatalogFile      `yaml:"file,omitempty" doc:"The published file."`
	// Images are in order of importance.
	Images []CatalogImage `yaml:"images,omitempty" doc:"The images, as references or as mappings."`
	Chart  *CatalogChart  `yaml:"chart,omitempty" doc:"The Helm chart, as the address of its archive or as a mapping."`
	// Platforms are the published platforms; none means all.
	Platforms []string `yaml:"platforms,omitempty" doc:"Published platforms. Default every platform."`
	// Fits lists the releases of Kubernetes that the component's release lines support.
	Fits []Fit `yaml:"fits,omitempty" doc:"Releases of Kubernetes for each release line."`
	// Minimum has, like Since, the oldest version compatible with a Kubernetes.
	Minimum map[string]string `yaml:"minimum,omitempty" doc:"The oldest version for Kubernetes, by its first release."`
	// Through are versions that an upgrade must not skip.
	Through []Through `yaml:"through,omitempty" doc:"Versions that an upgrade must not skip."`
	// Skew is the largest allowed distance between its minor release and that of Kubernetes.
	Skew *Skew `yaml:"skew,omitempty" doc:"Allowed distance to Kubernetes, in minor releases."`
}

// Through is a version that must run everywhere before a release line does.
type Through struct {
	// To is the release line, vMAJOR.MINOR; Least is the oldest version from which it may be reached.
	To    string `yaml:"to" kk:"required" doc:"Release line of the component that must not be reached directly, such as v3.6."`
	Least string `yaml:"least" kk:"required" doc:"The oldest version from which it may be reached."`
	// Take is the version that an upgrade from an older one takes first.
	Take string `yaml:"take" kk:"required" doc:"The version that an upgrade takes first."`
}

// CatalogFile is a file of a component.
type CatalogFile struct {
	URL PlatformText `yaml:"url" kk:"required" doc:"Address, or addresses by platform."`
	// Checksums is as in File. Without it, the lock pins the first download.
	Checksums string `yaml:"checksums,omitempty" doc:"Address of upstream's checksums. Without one the lock pins the first download."`
	// Stable is the address of the newest version, with {minor} for a hyphen and a minor release, or for nothing.
	Stable string `yaml:"stable,omitempty" doc:"Address of a text that is the newest version; {minor} is -1.36 or nothing."`
	// Version is a template; {version} by default.
	Version string          `yaml:"version,omitempty" doc:"The file's version, if its form differs from the component's."`
	Mode    scalar.FileMode `yaml:"mode,omitempty" doc:"Permissions in octal, such as 0755."`
	// Formerly is the file that earlier versions and earlier bundles have in place of URL; nil if there is none.
	Formerly *CatalogFormer `yaml:"formerly,omitempty" doc:"The file that was used before this one."`
}

// CatalogFormer is the predecessor of a component's file.
type CatalogFormer struct {
	// Before is the first version with the new file.
	Before    string       `yaml:"before" kk:"required" doc:"The first version that has the new file; earlier ones only have this one."`
	URL       PlatformText `yaml:"url" kk:"required" doc:"Address, or addresses by platform. Bundles that have this file and not the new one can be installed."`
	Checksums string       `yaml:"checksums,omitempty" doc:"Address of upstream's checksums."`
}

// PlatformText is one text for all platforms, under AllPlatforms, or one for each. In YAML a single value stands for
// all.
type PlatformText map[string]string

// SetShort implements document.Shorthand.
func (t *PlatformText) SetShort(text string) { *t = PlatformText{scalar.AllPlatforms: text} }

// MarshalYAML writes the short form if it was read.
func (t PlatformText) MarshalYAML() (any, error) {
	if all, ok := t[scalar.AllPlatforms]; ok && len(t) == 1 {
		return all, nil
	}
	return map[string]string(t), nil
}

// CatalogImage is an image of a component. In YAML it is a reference, or a mapping for further settings.
type CatalogImage struct {
	Name string `yaml:"name" kk:"required" doc:"Reference, such as registry.k8s.io/pause:{version}."`
	// From is the first version of the component that uses the image; empty means every version.
	From string `yaml:"from,omitempty" doc:"The first version of the component that uses this image."`
	// Before is the first version that no longer uses it; empty means none.
	Before string `yaml:"before,omitempty" doc:"The first version of the component that no longer uses this image."`
	// Tags has the values of {tag} by the component's version. For other versions the chart has the tag.
	Tags map[string]string `yaml:"tags,omitempty" doc:"Value of {tag} by version of the component; images of other versions are known only to the chart."`
}

// SetShort implements document.Shorthand.
func (i *CatalogImage) SetShort(text string) { i.Name = text }

// CatalogChart is a chart of a component. In YAML it is the address of an archive, or a mapping.
type CatalogChart struct {
	URL  string `yaml:"url,omitempty" doc:"Address of the archive."`
	Repo string `yaml:"repo,omitempty" doc:"Instead of url: the https:// or oci:// repository."`
	Name string `yaml:"name,omitempty" doc:"The chart's own name. Default the component's."`
	// Version is a template; {version} by default.
	Version string `yaml:"version,omitempty" doc:"The chart's version, if its form differs from the component's."`
	// From is the first version of the component that has the chart; empty means every version.
	From string `yaml:"from,omitempty" doc:"The first version of the component that has this chart."`
}

// SetShort implements document.Shorthand.
func (c *CatalogChart) SetShort(text string) { c.URL = text }

// Fit lists the releases of Kubernetes that a release line of a component supports.
type Fit struct {
	// Line is vMAJOR.MINOR of the component.
	Line string `yaml:"line" kk:"required" doc:"Release line of the component, such as v3.31."`
	// From and To are the first and last vMAJOR.MINOR of Kubernetes; an empty To has no end yet.
	From string `yaml:"from" kk:"required" doc:"The first minor release of Kubernetes, such as v1.30."`
	To   string `yaml:"to,omitempty" doc:"The last minor release; none for no end."`
}

// Skew is in minor releases.
type Skew struct {
	Older int `yaml:"older,omitempty" doc:"Number of minor releases that it may be older than Kubernetes."`
	Newer int `yaml:"newer,omitempty" doc:"Number of minor releases that it may be newer."`
}

// CatalogPackage holds a package's names in operating systems.
type CatalogPackage struct {
	Debian []string `yaml:"debian,omitempty" doc:"Names in Debian, Ubuntu and their derivatives."`
	RPM    []string `yaml:"rpm,omitempty" doc:"Names in Red Hat's distributions, openEuler and their derivatives."`
	// Releases has the names in releases that differ from those of their family, by distribution and major version.
	Releases map[string][]string `yaml:"releases,omitempty" doc:"Names in one release of a distribution, such as rocky/10, instead of those of its family."`
}

// Check makes the checks beyond the types.
func (k *Catalog) Check(c *scalar.Words) {
	k.src = c.Tree
	catalogChecker{c}.check(k)
}

// Problem returns an error about the value at a path of the catalog file, like manifest.Cluster.Problem.
func (k *Catalog) Problem(path, message string) error {
	c := &document.Checker{Tree: k.src}
	c.Add(path, "%s", message)
	return c.Found
}

var minorPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v\d+\.\d+$`) }) //nolint:gochecknoglobals // compiled once

// catalogChecker makes a catalog's checks beyond the types.
type catalogChecker struct{ *scalar.Words }

func (c catalogChecker) check(k *Catalog) {
	for _, minor := range slices.Sorted(maps.Keys(k.Releases)) {
		at := document.Key("releases", minor)
		c.Release(at, k.Releases[minor])
		if !minorPattern().MatchString(minor) || !strings.HasPrefix(k.Releases[minor], minor+".") {
			c.AddKey(at, "want a minor release and a release of it, as in v1.36: v1.36.3")
		}
	}
	CheckKubeadm(c.Words, k.Kubeadm)
	for _, name := range slices.Sorted(maps.Keys(k.Components)) {
		one := k.Components[name]
		c.catalogEntry(document.Key("components", name), name, &one)
		k.Components[name] = one
	}
	for _, purpose := range slices.Sorted(maps.Keys(k.Packages)) {
		c.catalogPackage(document.Key("packages", purpose), k.Packages[purpose])
	}
	for _, name := range slices.Sorted(maps.Keys(k.EndOfLife)) {
		for _, line := range slices.Sorted(maps.Keys(k.EndOfLife[name])) {
			at := document.Key(document.Key("endOfLife", name), line)
			if !minorPattern().MatchString(line) {
				c.AddKey(at, "%q is not a release line; write one such as v1.36", document.Shorten(line))
			}
			if _, err := time.Parse(time.DateOnly, k.EndOfLife[name][line]); err != nil {
				c.Add(at, "%q is not a day; write one such as 2026-06-28", document.Shorten(k.EndOfLife[name][line]))
			}
		}
	}
	for key, removed := range map[string]map[string][]string{
		"removedGates": k.RemovedGates, "removedArguments": k.RemovedArguments,
	} {
		for _, minor := range slices.Sorted(maps.Keys(removed)) {
			if !minorPattern().MatchString(minor) {
				c.AddKey(document.Key(key, minor), "%q is not a minor release; write one such as v1.27",
					document.Shorten(minor))
			}
		}
	}
	for _, zone := range slices.Sorted(maps.Keys(k.Zones)) {
		sources.Check(c.Words, document.Key("zones", zone), k.Zones[zone])
	}
}

// CheckKubeadm checks the images of kubeadm, in a catalog and in a lock.
func CheckKubeadm(c *scalar.Words, all map[string]KubeadmImages) {
	for _, release := range slices.Sorted(maps.Keys(all)) {
		at, one := document.Key("kubeadm", release), all[release]
		if _, err := semver.StrictNewVersion(strings.TrimPrefix(release, "v")); err != nil ||
			!strings.HasPrefix(release, "v") {
			c.AddKey(at, "%q is not a release; write one such as v1.36.3", document.Shorten(release))
		}
		for _, tag := range [][2]string{{"etcd", one.Etcd}, {"coredns", one.CoreDNS}, {"pause", one.Pause}} {
			c.Version(document.Join(at, tag[0]), tag[1])
		}
		if one.Program != "" {
			c.Digest(document.Join(at, "program"), one.Program.String())
		}
	}
}

func (c catalogChecker) catalogEntry(at, name string, one *CatalogEntry) {
	if !scalar.IsFileName(name) || len(name) > scalar.MaxToken {
		c.AddKey(at, "%q is not a name; use letters, digits and . _ + -", document.Shorten(name))
	}
	if one.File == nil && len(one.Images) == 0 && one.Chart == nil {
		c.AddKey(at, "has no file, image or chart")
	}
	if one.Default == "" && one.Follows == "" && len(one.Since) == 0 {
		c.AddKey(at, "says no version; write default, follows or since")
	}
	c.Version(document.Join(at, "default"), one.Default)
	c.Platforms(document.Join(at, "platforms"), one.Platforms)
	c.versionTable(document.Join(at, "since"), one.Since)
	c.versionTable(document.Join(at, "minimum"), one.Minimum)
	for i, t := range one.Through {
		path := document.Index(document.Join(at, "through"), i)
		if !minorPattern().MatchString(t.To) {
			c.Add(document.Join(path, "to"), "%q is not a release line; write one such as v3.6", document.Shorten(t.To))
		}
		c.Version(document.Join(path, "least"), t.Least)
		c.Version(document.Join(path, "take"), t.Take)
	}
	for i, fit := range one.Fits {
		path := document.Index(document.Join(at, "fits"), i)
		for _, bound := range [][2]string{{"line", fit.Line}, {"from", fit.From}, {"to", fit.To}} {
			if bound[1] != "" && !minorPattern().MatchString(bound[1]) {
				c.Add(document.Join(path, bound[0]), "%q is not a release line; write one such as v1.36",
					document.Shorten(bound[1]))
			}
		}
	}
	if f := one.File; f != nil {
		c.entryFile(document.Join(at, "file"), f)
	}
	if chart := one.Chart; chart != nil {
		path := document.Join(at, "chart")
		switch {
		case (chart.URL == "") == (chart.Repo == ""):
			c.Add(path, "write url or repo")
		case chart.URL != "":
			c.Address(document.Join(path, "url"), fillSample(chart.URL), "https", "http")
		default:
			c.Address(document.Join(path, "repo"), chart.Repo, "https", "http", "oci")
		}
		c.Release(document.Join(path, "from"), chart.From)
	}
	for i, image := range one.Images {
		path := document.Index(document.Join(at, "images"), i)
		if _, err := scalar.ImageName(fillSample(image.Name)); err != nil {
			c.Add(path, "%v", err)
		}
		if strings.Contains(image.Name, "{tag}") != (len(image.Tags) > 0) {
			c.Add(path, "{tag} and tags go together")
		}
		c.Release(document.Join(path, "from"), image.From)
		c.Release(document.Join(path, "before"), image.Before)
	}
}

// catalogPackage checks names that package managers get as arguments.
func (c catalogChecker) catalogPackage(at string, one CatalogPackage) {
	lists := map[string][]string{document.Join(at, "debian"): one.Debian, document.Join(at, "rpm"): one.RPM}
	for release, names := range one.Releases {
		lists[document.Key(document.Join(at, "releases"), release)] = names
	}
	for _, path := range slices.Sorted(maps.Keys(lists)) {
		for i, name := range lists[path] {
			if !scalar.IsPackageName(name) || strings.Contains(name, "/") {
				c.Add(document.Index(path, i), "%q is not a package name", document.Shorten(name))
			}
		}
	}
}

func (c catalogChecker) entryFile(at string, f *CatalogFile) {
	f.URL = c.platformURLs(at, f.URL)
	if f.Checksums != "" {
		c.Address(document.Join(at, "checksums"), fillSample(f.Checksums), "https", "http")
	}
	if f.Stable != "" {
		c.Address(document.Join(at, "stable"), fillSample(f.Stable), "https", "http")
	}
	former := f.Formerly
	if former == nil {
		return
	}
	at = document.Join(at, "formerly")
	c.Release(document.Join(at, "before"), former.Before)
	former.URL = c.platformURLs(at, former.URL)
	if former.Checksums != "" {
		c.Address(document.Join(at, "checksums"), fillSample(former.Checksums), "https", "http")
	}
}

// platformURLs checks the addresses of a file and returns them by the usual names of their platforms.
func (c catalogChecker) platformURLs(at string, urls PlatformText) PlatformText {
	normal := PlatformText{}
	for _, platform := range slices.Sorted(maps.Keys(urls)) {
		path := document.Join(at, "url")
		if platform != scalar.AllPlatforms {
			path = document.Key(path, platform)
		}
		c.Address(path, fillSample(urls[platform]), "https", "http")
		p, err := platform, error(nil)
		if platform != scalar.AllPlatforms {
			p, err = scalar.PlatformString(platform)
		}
		if err != nil {
			c.AddKey(path, "%v", err)
		}
		normal[p] = urls[platform]
	}
	return normal
}

// fillSample replaces the catalog's placeholders in a template by values, so that the result can be checked.
func fillSample(template string) string {
	return strings.NewReplacer("{version}", "v1.2.3", "{number}", "1.2.3", "{core}", "1.2.3", "{line}", "v1.2", "{tag}",
		"v1", "{minor}", "-1.2").Replace(template)
}

// versionTable checks the keys of since and minimum.
func (c catalogChecker) versionTable(at string, table map[string]string) {
	for _, from := range slices.Sorted(maps.Keys(table)) {
		if _, err := semver.StrictNewVersion(strings.TrimPrefix(from, "v")); err != nil ||
			!strings.HasPrefix(from, "v") {
			c.AddKey(document.Key(at, from), "%q is not a release; write one such as v1.36.0", document.Shorten(from))
		}
		c.Version(document.Key(at, from), table[from])
	}
}
