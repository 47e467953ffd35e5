package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/distribution/reference"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// bundleChecker makes a manifest's checks beyond the types, and normalizes platforms and hashes.
type bundleChecker struct{ *checker }

func (c bundleChecker) check(b *Bundle) {
	c.name(b.Metadata.Name)
	if b.Metadata.Version == "" {
		c.Add("metadata", "version is missing; it becomes part of the bundle's file name")
	} else {
		c.version("metadata.version", b.Metadata.Version)
	}
	c.platforms("platforms", b.Platforms)
	c.images(b.Images, b.Trust.Root)
	for i := range b.Charts {
		c.chart(document.Index("charts", i), &b.Charts[i])
	}
	c.sameChart(b.Charts)
	for i := range b.Files {
		c.file(document.Index("files", i), &b.Files[i])
	}
	c.sameFile(b.Files, b.Platforms)
	sources := sourceChecker(c)
	sources.sources("sources", b.Sources)
	c.clusters(b)
	c.discovery(b)
	sources.overrides(b.Overrides)
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

func (c *checker) name(name string) {
	if name != "" && !document.IsName(name, true) {
		c.Add("metadata.name", "%q is not a name; use lower case letters, digits, hyphens and dots",
			document.Shorten(name))
	}
}

func (c *checker) version(path, version string) {
	if version != "" && (!isToken(version) || len(version) > maxToken) {
		c.Add(path, "%q is not a version; use letters, digits and . _ + -, at most %d of them",
			document.Shorten(version), maxToken)
	}
}

// maxToken is the longest tag in the OCI distribution specification; versions become tags.
const maxToken = 128

// isToken reports whether s is a valid version everywhere: it begins with a letter or digit.
func isToken(s string) bool {
	return s != "" && !strings.ContainsAny(s[:1], "._+-") && document.Only(strings.ToLower(s), "._+-")
}

// isFileName reports whether s is a valid file name everywhere. Versions in names of Debian packages may contain ~
// (deb-version(7)). Shells and kkbundle expand a leading ~ to a home directory, so it may not be first.
func isFileName(s string) bool { return isToken(strings.ReplaceAll(s, "~", "-")) }

func (c *checker) platforms(at string, list []string) {
	for i, written := range list {
		path := document.Index(at, i)
		p, err := PlatformString(written)
		if err != nil {
			c.Add(path, "%v", err)
			continue
		}
		if first := slices.Index(list[:i], p); first >= 0 {
			c.Add(path, "%s is there twice, first on %s", p, c.Place(document.Index(at, first)))
		}
		list[i] = p
	}
}

func (c bundleChecker) images(list []Image, root string) {
	first := map[string]int{}
	for i, image := range list {
		path := document.Index("images", i)
		c.platforms(document.Join(path, "platforms"), image.Platforms)
		c.key(path, image.Verify, root)
		named, err := reference.ParseNormalizedNamed(image.Name)
		if _, after, _ := strings.Cut(image.Name, "@"); err != nil && strings.Contains(after, "/") {
			c.Add(path, "%s", noSecrets) // user:password@host/path; a digest has no slash
			continue
		}
		if err != nil {
			c.Add(path, "%q is not an image reference; write one such as docker.io/library/nginx:1.29 (%v)",
				document.Shorten(image.Name), err)
			continue
		}
		digest := image.Digest
		if digest != "" && !c.digest(document.Join(path, "digest"), digest) {
			continue
		}
		if d, ok := named.(reference.Digested); ok {
			inName := d.Digest().String()
			if c.digest(path, inName) && digest != "" && digest != inName {
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

// digest reports whether s is a sha256 digest, and adds a problem otherwise.
func (c *checker) digest(path, s string) bool {
	algorithm, hex, _ := strings.Cut(s, ":")
	switch {
	case algorithm == "sha256" && isHex(hex, 64):
		return true
	case isToken(algorithm) && algorithm != "sha256" && hex != "":
		c.Add(path, "%q: only sha256 digests are read", document.Shorten(s))
	default:
		c.Add(path, "%q is not a digest; write sha256: and 64 hexadecimal digits in lower case", document.Shorten(s))
	}
	return false
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
		c.address(document.Join(path, "repo"), chart.Repo, "https", "http", "oci")
		if strings.Contains(chart.Repo, "?") {
			c.Add(document.Join(path, "repo"),
				"a repository is an address without a query; leave out the part from ? on")
		}
		if chart.Name == "" {
			c.Add(path, "name is missing")
		}
		if chart.Version == "" {
			c.Add(path, "version is missing; write one, or a range such as 4.14.x")
		}
	case chart.URL != "":
		c.address(document.Join(path, "url"), chart.URL, "https", "http")
		if chart.Version != "" {
			c.Add(document.Join(path, "version"), "an archive has its version in its Chart.yaml; leave it out here")
		}
	case chart.Version != "":
		c.Add(document.Join(path, "version"), "a local chart has its version in its Chart.yaml; leave it out here")
	}
	if chart.ImagesListed && len(chart.Values) > 0 {
		c.Add(document.Join(path, "values"), "with imagesListed the chart is not rendered; leave one of them out")
	}
	if chart.Name != "" && !isToken(chart.Name) {
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
			c.Add(document.Index("charts", i), "%s is there twice, first on %s", shown(id),
				c.Place(document.Index("charts", at)))
		}
	}
}

// noSecrets and signedAddress do not repeat the secret.
const (
	noSecrets     = "secrets never live in this file; take the user and password out, and log in with the docker configuration or netrc"
	signedAddress = "%s in an address is a secret, and would be in the lock and the bundle for all to read; take it out, and log in with netrc"
)

// SecretParameter returns the name of the query parameter in a URL that grants access: a signature of an object store,
// or a token. It is "" if there is none.
func SecretParameter(u *url.URL) string {
	known := []string{
		"x-amz-signature", "x-amz-security-token", "x-goog-signature", "signature", "sig", "token", "access_token",
		"private_token",
		"job_token", "api_key", "apikey", "auth", "password", "secret",
	}
	for _, name := range sortedKeys(u.Query()) {
		if slices.Contains(known, strings.ToLower(name)) {
			return name
		}
	}
	return ""
}

// WithoutSecrets returns a reference for public documents: without user and password, and without a query that grants
// access. Files with such addresses are refused; this is for references from other programs.
func WithoutSecrets(ref string) string {
	u, err := url.Parse(ref)
	if err != nil || u.Host == "" {
		return ref
	}
	secret := SecretParameter(u) != ""
	if u.User == nil && !secret {
		return ref
	}
	if u.User = nil; secret {
		u.RawQuery = ""
	}
	return u.String()
}

// shown returns a reference for messages, without a password put into it by mistake.
func shown(ref string) string {
	if u, err := url.Parse(ref); err == nil && u.User != nil {
		return document.Shorten(u.Redacted())
	}
	return document.Shorten(ref)
}

// address checks a URL that may have the placeholders of a file.
func (c *checker) address(path, s string, schemes ...string) {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(s))
	switch {
	case strings.Contains(s, "@") && (err != nil || u.User != nil):
		c.Add(path, "%s", noSecrets)
	case err != nil:
		c.Add(path, "%q is not a URL", document.Shorten(s))
	case !slices.Contains(schemes, u.Scheme):
		c.Add(path, "%q: want a URL with %s://", document.Shorten(s), document.Or(schemes))
	case u.Scheme == "file" && u.Host != "":
		c.Add(path, "%q: a file URL has three slashes before its path", document.Shorten(s))
	case u.Scheme != "file" && u.Hostname() == "":
		c.Add(path, "%q has no host", document.Shorten(s))
	case u.Fragment != "":
		c.Add(path, "%q: the part from # on is never sent; leave it out", document.Shorten(s))
	case SecretParameter(u) != "":
		c.Add(path, signedAddress, SecretParameter(u))
	}
	c.placeholders(path, s)
}

// placeholders reports braces that Expand does not know.
func (c *checker) placeholders(path, s string) {
	rest := strings.NewReplacer("{os}", "", "{arch}", "", "{x86arch}", "").Replace(s)
	if at := strings.IndexAny(rest, "{}"); at >= 0 {
		c.Add(path, "%q has a placeholder that is not known; known: {os}, {arch} and {x86arch}",
			document.Shorten(rest[at:]))
	}
}

func (c bundleChecker) file(path string, f *File) {
	if f.Name != "" && (!isFileName(f.Name) || len(f.Name) > maxToken) {
		c.Add(document.Join(path, "name"),
			"%q is not a file name; use letters, digits and . _ + - ~, a letter or digit first",
			document.Shorten(f.Name))
	}
	c.version(document.Join(path, "version"), f.Version)
	switch {
	case f.URL == "" && f.Path == "":
		c.Add(path, "has no address; write url or path")
	case f.URL != "" && f.Path != "":
		c.Add(path, "has url and path; keep one")
	case f.URL != "" && !strings.Contains(f.URL, ":"):
		c.Add(document.Join(path, "url"), "%q is not a URL; a local file goes under path", document.Shorten(f.URL))
	case f.URL != "":
		c.address(document.Join(path, "url"), f.URL, "https", "http", "file")
	default:
		c.placeholders(document.Join(path, "path"), f.Path)
	}
	if f.Checksums != "" {
		c.address(document.Join(path, "checksums"), f.Checksums, "https", "http")
	}
	c.platforms(document.Join(path, "platforms"), f.Platforms)
	if len(f.Platforms) > 0 && !f.hasPlaceholders() {
		c.Add(document.Join(path, "platforms"),
			"the address has no placeholders, so all platforms share one file; leave this out")
	}
	c.sums(path, f)
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
		if platform != AllPlatforms {
			at = document.Key(path, platform)
		}
		if sum = strings.ToLower(sum); !isHex(sum, 64) {
			c.Add(at, "%q is not a sha256; write 64 hexadecimal digits", document.Shorten(sum))
		}
		different[sum] = true
		if platform == AllPlatforms {
			normal[platform] = sum
			continue
		}
		p, err := PlatformString(platform)
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
	_, all := normal[AllPlatforms]
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
				c.Add(document.Index("files", i), "%s is there twice, first on %s", shown(ids[id]),
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

// hostPort checks host or host:port.
func (c *checker) hostPort(path, s string) {
	if _, _, err := splitHostPort(s); err != nil {
		c.Add(path, "%v", err)
	}
}

// splitHostPort splits host or host:port; the port is 0 if there is none.
func splitHostPort(s string) (string, int, error) {
	if strings.Contains(s, "@") {
		return "", 0, errors.New(noSecrets)
	}
	if scheme, _, has := strings.Cut(s, "://"); has {
		return "", 0, fmt.Errorf("%q: want host or host:port, without %s://", document.Shorten(s),
			document.Shorten(scheme))
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		return "", 0, fmt.Errorf("%q is neither a host nor host:port; write an IPv6 address in brackets: [%s]",
			document.Shorten(s), a)
	}
	u, err := url.Parse("//" + s)
	if err != nil || u.Host != s || !isHost(u.Hostname()) || u.Hostname() == "" {
		return "", 0, fmt.Errorf("%q is neither a host nor host:port", document.Shorten(s))
	}
	if u.Port() == "" {
		if strings.HasSuffix(s, ":") {
			return "", 0, fmt.Errorf("%q has no port after the colon", document.Shorten(s))
		}
		return u.Hostname(), 0, nil
	}
	port, err := parsePort(u.Port())
	return u.Hostname(), port, err
}

// cutPath splits host[:port][/path]. A scheme, which is invalid there, stays with the host.
func cutPath(s string) (host, path string) {
	from := strings.Index(s, "://")
	if from < 0 {
		host, path, _ = strings.Cut(s, "/")
		return host, path
	}
	return s, ""
}
