package manifest

import (
	"reflect"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/distribution/reference"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// bundleChecker makes a manifest's checks beyond the types, and normalizes platforms and hashes.
type bundleChecker struct{ *checker }

func (c bundleChecker) check(b *Bundle) {
	c.Name(b.Metadata.Name)
	if b.Metadata.Version == "" {
		c.Add("metadata", "version is missing; it becomes part of the bundle's file name")
	} else {
		c.Version("metadata.version", b.Metadata.Version)
	}
	c.Platforms("platforms", b.Platforms)
	c.images(b.Images, b.Trust.Root)
	for i := range b.Charts {
		c.chart(document.Index("charts", i), &b.Charts[i])
	}
	c.sameChart(b.Charts)
	for i := range b.Files {
		c.file(document.Index("files", i), &b.Files[i])
	}
	c.sameFile(b.Files, b.Platforms)
	c.repositories(b.Git)
	c.self(b)
	sources.Check(c.Words, "sources", b.Sources)
	c.clusters(b)
	c.discovery(b)
	c.overrides(b.Overrides)
	packageChecker(c).packages(b.Packages)
	c.addons("deploy", b.Deploy)
	c.namedAlike(b)
	c.deployedCharts(b)
	c.groups(b)
}

// namedAlike refuses values with the name of something else that --set takes at the site.
func (c bundleChecker) namedAlike(b *Bundle) {
	for _, a := range b.Deployments() {
		if _, same := b.Values.Find(a.Release); same {
			c.AddKey(document.Key(valuesKey, a.Release),
				"is also the name of a release under deploy, so that deploy --set %s=… would be unclear; rename the value", a.Release)
		}
	}
	for _, f := range document.Fields(reflect.TypeFor[Cluster]()) {
		if d, same := b.Values.Find(f.Name); same && d.IsAt(values.Site) {
			c.AddKey(document.Key(valuesKey, f.Name),
				"is also a key of the cluster file, so that install --set %s=… would be unclear; rename the value", f.Name)
		}
	}
}

// deployedCharts refuses names under deploy that no chart of the manifest has. A chart's archive may have any name, so
// with one of those, only the build knows.
func (c bundleChecker) deployedCharts(b *Bundle) {
	var names []string
	for _, chart := range b.Charts {
		if chart.Name == "" {
			return
		}
		names = append(names, chart.Name)
	}
	for i, a := range b.Deploy {
		if a.Chart != "" && !slices.Contains(names, a.Chart) {
			c.Add(document.Join(document.Index("deploy", i), "chart"), "no chart %s is listed under charts",
				document.Shorten(a.Chart))
		}
	}
}

// clusters refuses duplicate cluster files.
func (c bundleChecker) clusters(b *Bundle) {
	for i, file := range b.Clusters {
		if file == b.Cluster || slices.Index(b.Clusters, file) < i {
			c.Add(document.Index("clusters", i), "%s is there twice", document.Shorten(file))
		}
	}
}

func (c bundleChecker) images(list []Image, root string) {
	first := map[string]int{}
	for i, image := range list {
		path := document.Index("images", i)
		c.Platforms(document.Join(path, "platforms"), image.Platforms)
		c.key(path, image.Verify, root)
		named, err := reference.ParseNormalizedNamed(image.Name)
		before, after, _ := strings.Cut(image.Name, "@")
		isLogin := strings.Contains(before, "://") && after != "" && !strings.HasPrefix(after, "sha256:")
		if err != nil && (strings.Contains(after, "/") || isLogin) {
			c.Add(path, "%s", scalar.NoSecrets) // user:password@host/path; a digest has no slash
			continue
		}
		if image.Name == "" {
			continue // said already
		}
		if scheme, rest, ok := strings.Cut(image.Name, "://"); ok {
			c.Add(path, "%q is not an image reference; write it without %s://: %s", document.Shorten(image.Name),
				document.Shorten(scheme), document.Shorten(rest))
			continue
		}
		if err != nil {
			c.Add(path, "%q is not an image reference; write one such as docker.io/library/nginx:1.29 (%v)",
				document.Shorten(image.Name), err)
			continue
		}
		digest := image.Digest
		if digest != "" && !c.Digest(document.Join(path, "digest"), digest) {
			continue
		}
		if d, ok := named.(reference.Digested); ok {
			inName := d.Digest().String()
			if c.Digest(path, inName) && digest != "" && digest != inName {
				c.Add(path, "the name pins %s and digest pins %s; keep one", inName, digest)
			}
		}
		ref, err := image.Ref()
		if err != nil {
			continue
		}
		base, _, _ := strings.Cut(ref, "@")
		if _, tagged := reference.TagNameOnly(named).(reference.Tagged); !tagged {
			base = ref
		}
		if at, twice := document.Earlier(first, base, i); twice {
			c.Add(path, "%s is there twice, first on %s", base, c.Place(document.Index("images", at)))
		}
	}
}

// key makes the checks of a signer that need not read the key or the trusted root.
func (c bundleChecker) key(path string, v *Verify, root string) {
	switch at := document.Join(path, "verify"); {
	case v == nil:
		return
	case v.Key != "" && v.Identity+v.Issuer != "":
		c.Add(at, "has key and identity; keep one")
	case v.Key == "" && (v.Identity == "" || v.Issuer == ""):
		c.Add(at, "key is missing; write key, or identity with issuer")
	case v.Identity != "" && root == "":
		c.Add(at, "an identity is checked with a trusted root; write trust: {root: trusted_root.json} for the whole manifest")
	}
	if strings.Contains(v.Key, "://") {
		c.Add(document.Join(document.Join(path, "verify"), "key"),
			"%q is not a path; write the public key into a file beside the manifest and name that",
			document.Shorten(v.Key))
	}
}

func (c bundleChecker) chart(path string, chart *Chart) {
	if chart.Verify != nil && chart.Path != "" {
		c.Add(document.Join(path, "verify"), "is for published charts; a local chart is used as it is")
	}
	var places []string
	for _, one := range [][2]string{{"repo", chart.Repo}, {"url", chart.URL}, {"path", chart.Path}} {
		if one[1] != "" {
			places = append(places, one[0])
		}
	}
	switch {
	case len(places) == 0:
		c.Add(path, "has no address; write repo (with name and version), url or path")
	case len(places) > 1:
		c.Add(path, "has %s; keep one", strings.Join(places, " and "))
	case chart.Repo != "":
		c.Address(document.Join(path, "repo"), chart.Repo, "https", "http", "oci")
		if strings.Contains(chart.Repo, "?") {
			c.Add(document.Join(path, "repo"),
				"a repository is an address without a query; leave out the part from ? on")
		}
		if strings.HasSuffix(chart.Repo, "/index.yaml") {
			c.Add(document.Join(path, "repo"), "the repository is the directory of index.yaml; leave out /index.yaml")
		}
		if chart.Name == "" {
			c.Add(path, "name is missing")
		}
		if chart.Version == "" {
			c.Add(path, "version is missing; write one, or a range such as 4.14.x")
		}
	case chart.URL != "":
		c.Address(document.Join(path, "url"), chart.URL, "https", "http")
		if chart.Version != "" {
			c.Add(document.Join(path, "version"), "an archive has its version in its Chart.yaml; leave it out here")
		}
	case chart.Version != "":
		c.Add(document.Join(path, "version"), "a local chart has its version in its Chart.yaml; leave it out here")
	}
	if chart.ImagesListed && len(chart.Values) > 0 {
		c.Add(document.Join(path, "values"), "with imagesListed the chart is not rendered; leave one of them out")
	}
	if chart.Name != "" && !scalar.IsToken(chart.Name) {
		c.Add(document.Join(path, "name"), "%q is not a chart name; use letters, digits, hyphens and dots",
			document.Shorten(chart.Name))
	}
	if chart.Version != "" {
		if _, err := semver.NewConstraint(chart.Version); err != nil {
			// Another tag, such as latest, moves. Helm takes none either, and a lock, which has the chart's own
			// version, could not tell two apart.
			c.Add(document.Join(path, "version"),
				`%q is neither a version nor a range of versions such as 4.14.x; write "*" for the newest stable version`, document.Shorten(chart.Version))
		}
	}
}

func (c bundleChecker) sameChart(list []Chart) {
	first := map[string]int{}
	for i, chart := range list {
		id := chart.URL + chart.Path
		if chart.Repo != "" {
			id = ChartRef(chart, chart.Name, chart.Version)
		}
		if at, twice := document.Earlier(first, id, i); twice && id != "" {
			c.Add(document.Index("charts", i), "%s is there twice, first on %s", scalar.Shown(id),
				c.Place(document.Index("charts", at)))
		}
	}
}

func (c bundleChecker) file(path string, f *File) {
	if f.Name != "" && (!scalar.IsFileName(f.Name) || len(f.Name) > scalar.MaxToken) {
		c.Add(document.Join(path, "name"),
			"%q is not a file name; use letters, digits and . _ + - ~, a letter or digit first",
			document.Shorten(f.Name))
	}
	c.Version(document.Join(path, "version"), f.Version)
	c.address(path, f)
	c.Platforms(document.Join(path, "platforms"), f.Platforms)
	if len(f.Platforms) > 0 && !f.hasPlaceholders() {
		c.Add(document.Join(path, "platforms"),
			"the address has no placeholders, so all platforms share one file; leave this out")
	}
	c.sums(path, f)
}

// address checks the places of a file and of its checksums.
func (c bundleChecker) address(path string, f *File) {
	switch {
	case f.URL == "" && f.Path == "":
		c.Add(path, "has no address; write url or path")
	case f.URL != "" && f.Path != "":
		c.Add(path, "has url and path; keep one")
	case f.URL != "" && !strings.Contains(f.URL, ":"):
		c.Add(document.Join(path, "url"), "%q is not a URL; a local file goes under path", document.Shorten(f.URL))
	case f.URL != "":
		c.Address(document.Join(path, "url"), f.URL, "https", "http", "file")
	default:
		c.Placeholders(document.Join(path, "path"), f.Path)
	}
	if f.Checksums != "" {
		c.Address(document.Join(path, "checksums"), f.Checksums, "https", "http")
	}
}

// sums checks and normalizes the expected hashes of a file.
func (c *checker) sums(path string, f *File) {
	if len(f.SHA256) == 0 {
		return
	}
	path = document.Join(path, "sha256")
	normal := make(Sums, len(f.SHA256))
	different := map[string]bool{}
	for _, platform := range sortedKeys(f.SHA256) {
		sum, at := f.SHA256[platform], path
		if platform != scalar.AllPlatforms {
			at = document.Key(path, platform)
		}
		if sum = strings.ToLower(sum); !scalar.IsHex(sum, 64) {
			c.Add(at, "%q is not a sha256; write 64 hexadecimal digits", document.Shorten(sum))
		}
		different[sum] = true
		if platform == scalar.AllPlatforms {
			normal[platform] = sum
			continue
		}
		p, err := scalar.PlatformString(platform)
		if err != nil {
			c.AddKey(at, "%v", err)
			continue
		}
		if _, twice := normal[p]; twice {
			c.AddKey(at, "%s is there twice", p)
		}
		normal[p] = sum
	}
	f.SHA256 = normal
	_, all := normal[scalar.AllPlatforms]
	switch perPlatform := f.hasPlaceholders(); {
	case all && perPlatform:
		c.Add(path, "the address has placeholders, so each platform has its own file; write one hash for each, as in {linux/amd64: …}")
	case !perPlatform && len(different) > 1:
		c.Add(path, "the address has no placeholders, so all platforms share one file; it cannot have several hashes")
	}
}

// sameFile reports files that would be the same item on a platform.
func (c bundleChecker) sameFile(list []File, platforms []string) {
	first := map[string]int{}
	for i, f := range list {
		if f.Name == "" {
			continue
		}
		ids := map[string]string{f.Name + " " + f.Version: strings.TrimSpace("file " + f.Name + " " + f.Version)}
		for _, p := range f.PlatformsIn(platforms) {
			if ref := FileURL(f, p); ref != "" {
				ids[ref] = ref
			}
		}
		for _, id := range sortedKeys(ids) {
			if at, twice := first[id]; twice {
				c.Add(document.Index("files", i), "%s is there twice, first on %s", scalar.Shown(ids[id]),
					c.Place(document.Index("files", at)))
				break
			}
		}
		for id := range ids {
			if _, known := first[id]; !known {
				first[id] = i
			}
		}
	}
}
