package sbom

import (
	"net/url"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

// ociPURL is the package URL of what a registry has
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

// genericPURL is the package URL of a file. Charts that are no OCI artifacts have it too: a type for them is not registered.
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

// qualifiers are those of a package URL, which have to be added in the order of their names.
type qualifiers []string

func (q *qualifiers) add(name, value string) {
	if value != "" {
		*q = append(*q, name+"="+escape(value))
	}
}

// String begins with a question mark, if there is anything.
func (q qualifiers) String() string {
	if len(q) == 0 {
		return ""
	}
	return "?" + strings.Join(q, "&")
}

// escape encodes a part of a package URL.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
