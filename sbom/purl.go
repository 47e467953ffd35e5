package sbom

import (
	"net/url"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// ociPURL returns the package URL of an artifact in a registry
// (https://github.com/package-url/purl-spec/blob/main/types/oci-definition.json).
func ociPURL(ref string, d digest.Digest, platform string) string {
	repository, _, _ := strings.Cut(ref, "@")
	tag := ""
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository, tag = repository[:i], repository[i+1:]
	}
	q := qualifiers{}
	if _, arch, ok := strings.Cut(platform, "/"); ok {
		q.add("arch", arch)
	}
	q.add("repository_url", repository)
	q.add("tag", tag)
	return "pkg:oci/" + escape(strings.ToLower(path.Base(repository))) + "@" + escape(d.String()) + q.String()
}

// genericPURL returns the package URL of a file, or of a chart that is no OCI artifact: there is no registered type for
// those.
func genericPURL(it bundle.Item, content digest.Digest, source string) string {
	name := it.Name
	if name == "" {
		name = path.Base(it.Ref)
	}
	version := ""
	if it.Version != "" {
		version = "@" + escape(it.Version)
	}
	q := qualifiers{}
	q.add("checksum", content.String())
	if address(source) {
		q.add("download_url", source)
	}
	return "pkg:generic/" + escape(name) + version + q.String()
}

// packagePURL returns the package URL of an operating system package, or ""
// (https://github.com/package-url/purl-spec/blob/main/types/deb-definition.json and rpm-definition.json). Only the
// architecture comes from the file name: NAME_VERSION_ARCH.deb, NAME-VERSION-RELEASE.ARCH.rpm.
func packagePURL(it bundle.Item) string {
	name, _, _ := strings.Cut(it.Descriptor.Annotations[bundle.AnnotationPackage], ",")
	distribution, ok := manifest.PackageDistribution(it.Ref)
	if !ok || name == "" {
		return ""
	}
	vendor, release, _ := strings.Cut(distribution, "/")
	kind, version, epoch := "rpm", it.Version, ""
	arch := strings.TrimSuffix(it.Name, ".rpm")
	if file, deb := strings.CutSuffix(it.Name, ".deb"); deb {
		kind, arch = "deb", file[strings.LastIndexByte(file, '_')+1:]
	} else {
		arch = arch[strings.LastIndexByte(arch, '.')+1:]
		if before, after, found := strings.Cut(version, ":"); found {
			epoch, version = before, after
		}
	}
	q := qualifiers{}
	q.add("arch", arch)
	q.add("distro", vendor+"-"+release)
	q.add("epoch", epoch)
	return "pkg:" + kind + "/" + escape(vendor) + "/" + escape(name) + "@" + escape(version) + q.String()
}

// qualifiers are the qualifiers of a package URL, to be added sorted by name.
type qualifiers []string

func (q *qualifiers) add(name, value string) {
	if value != "" {
		*q = append(*q, name+"="+escape(value))
	}
}

// String begins with a question mark, if there are any.
func (q qualifiers) String() string {
	if len(q) == 0 {
		return ""
	}
	return "?" + strings.Join(q, "&")
}

// escape encodes a part of a package URL.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
