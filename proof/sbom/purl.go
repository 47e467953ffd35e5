package sbom

import (
	"maps"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	purl "github.com/package-url/packageurl-go"

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
	_, arch, _ := strings.Cut(platform, "/")
	return packageURL(purl.TypeOCI, "", strings.ToLower(path.Base(repository)), d.String(), map[string]string{
		"arch": arch, "repository_url": repository, "tag": tag,
	})
}

// genericPURL returns the package URL of a file, or of a chart that is no OCI artifact: there is no registered type for
// those.
func genericPURL(it bundle.Item, content digest.Digest, source string) string {
	name := it.Name
	if name == "" {
		name = path.Base(it.Ref)
	}
	if !address(source) {
		source = ""
	}
	return packageURL(purl.TypeGeneric, "", name, it.Version, map[string]string{
		"checksum":     content.String(),
		"download_url": source,
	})
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
	kind, version, epoch := purl.TypeRPM, it.Version, ""
	arch := strings.TrimSuffix(it.Name, ".rpm")
	if file, deb := strings.CutSuffix(it.Name, ".deb"); deb {
		kind, arch = purl.TypeDebian, file[strings.LastIndexByte(file, '_')+1:]
	} else {
		arch = arch[strings.LastIndexByte(arch, '.')+1:]
		if before, after, found := strings.Cut(version, ":"); found {
			epoch, version = before, after
		}
	}
	return packageURL(kind, vendor, name, version, map[string]string{
		"arch": arch, "distro": vendor + "-" + release,
		"epoch": epoch,
	})
}

// packageURL leaves out qualifiers without a value.
func packageURL(kind, namespace, name, version string, qualifiers map[string]string) string {
	maps.DeleteFunc(qualifiers, func(_, value string) bool { return value == "" })
	return purl.NewPackageURL(kind, namespace, name, version, purl.QualifiersFromMap(qualifiers), "").ToString()
}
