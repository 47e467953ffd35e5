package manifest

import (
	"net/url"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// localPrefix begins the references of local files and charts.
const localPrefix = "local/"

// IsLocal reports whether a reference is that of a local file or chart.
func IsLocal(ref string) bool { return strings.HasPrefix(ref, localPrefix) }

// Ref returns the image's io.kkbundle.ref: fully qualified, with the digest if the manifest pins one.
func (i Image) Ref() (string, error) {
	ref, err := scalar.ImageName(i.Name)
	if err != nil || i.Digest == "" || strings.Contains(ref, "@") {
		return ref, err
	}
	return ref + "@" + i.Digest, nil
}

// FileURL returns the file's URL for a platform, which is also the item's io.kkbundle.ref. A local file (LocalPath)
// has local/ and its name.
func FileURL(f File, platform scalar.Platform) string {
	if _, local := f.LocalPath(platform); local {
		return localPrefix + f.Name
	}
	return scalar.Expand(f.URL, platform)
}

// LocalPath returns the path of a file that is not fetched over the network, for a platform. It is relative to the
// manifest unless it begins with a slash.
func (f File) LocalPath(platform scalar.Platform) (path string, local bool) {
	if f.Path != "" {
		return scalar.Expand(f.Path, platform), true
	}
	if rest, ok := strings.CutPrefix(f.URL, "file://"); ok {
		rest = scalar.Expand(rest, platform)
		if decoded, err := url.PathUnescape(rest); err == nil {
			rest = decoded
		}
		return rest, true
	}
	return "", false
}

// PerPlatform reports whether the file differs by platform, or is for some platforms only.
func (f File) PerPlatform() bool { return len(f.Platforms) > 0 || f.hasPlaceholders() }

func (f File) hasPlaceholders() bool {
	return slices.ContainsFunc([]string{f.URL, f.Path, f.Checksums},
		func(s string) bool { return scalar.Expand(s, "linux/amd64") != s })
}

// PlatformsIn returns the file's own platforms, or else the bundle's.
func (f File) PlatformsIn(bundle []string) []string {
	if len(f.Platforms) > 0 {
		return f.Platforms
	}
	return bundle
}

// Sum returns the expected sha256 of the file for a platform, 64 hexadecimal digits, or "".
func (f File) Sum(platform scalar.Platform) string {
	if sum, ok := f.SHA256[platform]; ok {
		return sum
	}
	for p, sum := range f.SHA256 {
		if normal, err := scalar.PlatformString(p); err == nil && normal == platform {
			return sum
		}
	}
	return f.SHA256[scalar.AllPlatforms]
}

// ChartRef returns a chart's io.kkbundle.ref. Name and version are those in the chart itself; they are ignored for a
// chart named by the URL of its archive, whose reference is that URL.
func ChartRef(c Chart, name, version string) string {
	switch {
	case c.URL != "":
		return c.URL
	case c.Path != "":
		return localPrefix + name + ":" + version
	default:
		return strings.TrimSuffix(c.Repo, "/") + "/" + name + ":" + version
	}
}
