package manifest

import (
	"context"
	"io/fs"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// The kinds of file.
const (
	KindBundle    = "Bundle"
	KindCluster   = "Cluster"
	KindInventory = "Inventory"
	KindLock      = "Lock"
	// KindPrecheckRules is for a file of PrecheckRules.
	KindPrecheckRules = "PrecheckRules"
	// KindTrust is for a file of Trust.
	KindTrust = "Trust"
	// KindCatalog is for a catalog file.
	KindCatalog = catalogfile.Kind
)

// Metadata names a file's object.
type Metadata struct {
	// Name is lower case letters, digits, hyphens and dots.
	Name string `yaml:"name" kk:"required" doc:"Lower case letters, digits, hyphens and dots."`
	// Version is any version that can be part of a file name.
	Version string `yaml:"version,omitempty" doc:"The version of this bundle; part of its file name."`
}

// PlatformPolicy decides about an image that lacks a requested platform. Files differ by platform, so a missing one is
// an error; a file can list its own platforms.
type PlatformPolicy string

// The policies; an empty one is PolicyStrict.
const (
	// PolicyStrict makes a platform that upstream lacks an error.
	PolicyStrict PlatformPolicy = "strict"
	// PolicyWarn records a platform that upstream lacks, in the lock and in the bundle.
	PolicyWarn PlatformPolicy = "warn"
)

// ReferrerPolicy selects the artifacts attached to images (signatures, attestations, SBOMs) that travel with them.
type ReferrerPolicy string

// The policies; an empty one is ReferrersAll.
const (
	// ReferrersAll includes every attached artifact.
	ReferrersAll ReferrerPolicy = "all"
	// ReferrersSignatures includes only signatures.
	ReferrersSignatures ReferrerPolicy = "signatures"
	// ReferrersNone includes none, and looks none up.
	ReferrersNone ReferrerPolicy = "none"
)

// IndexPolicy selects the platforms that travel of an image whose index has more than were asked for.
type IndexPolicy string

// The policies; an empty one is IndexesPinned.
const (
	// IndexesPinned includes all platforms of images that are pinned by the digest of their index: registries that
	// check indexes take them complete only, and no reduced index has that digest. Other images have the platforms
	// that were asked for.
	IndexesPinned IndexPolicy = "pinned"
	// IndexesComplete includes all platforms of every image.
	IndexesComplete IndexPolicy = "complete"
	// IndexesSelected includes only the platforms that were asked for.
	IndexesSelected IndexPolicy = "selected"
)

// Bundle describes the content of a bundle.
type Bundle struct {
	APIVersion string   `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string   `yaml:"kind" kk:"required" doc:"Bundle"`
	Metadata   Metadata `yaml:"metadata" kk:"required" doc:"Name and version of the bundle."`
	// Include names files that this one is merged over before it is decoded. Then it is empty, and Included has them.
	Include []string `yaml:"include,omitempty" local:"machine" doc:"Manifests that this one adds to: files below its directory, and directories for their files *.yaml in the order of names."`
	// Without is about included files, and is gone with Include.
	Without Without `yaml:"without,omitempty" doc:"What this file leaves out of those that it includes."`
	// Values are expanded in the rest of the file before it is decoded; see ParseBundleWith.
	Values         values.Table   `yaml:"values,omitempty" doc:"Values that this file, its cluster files, and the files that opt in name as ${name}."`
	Platforms      []string       `yaml:"platforms" kk:"required" doc:"The platforms of the hosts, such as linux/amd64."`
	PlatformPolicy PlatformPolicy `yaml:"platformPolicy,omitempty" enum:"strict,warn" doc:"A platform that upstream lacks of an image: strict, an error; warn, recorded. Default strict."`
	// Referrers applies to images without a policy of their own.
	Referrers ReferrerPolicy `yaml:"referrers,omitempty" enum:"all,signatures,none" doc:"Referrers that travel with images: signatures, attestations, SBOMs. Default all."`
	// Indexes applies to images without a policy of their own.
	Indexes IndexPolicy `yaml:"indexes,omitempty" enum:"pinned,complete,selected" doc:"Images with more platforms than platforms names: pinned, all platforms of those pinned by the digest of their index, since some registries take these complete only; complete, all platforms of every image; selected, never more than platforms. Default pinned."`
	// Cluster is the path of a Cluster file, relative to this one. All needs of that cluster are added.
	Cluster string `yaml:"cluster,omitempty" local:"machine" doc:"Path of a Cluster file; everything that this cluster needs is added."`
	// Clusters are further ones, for bundles that serve several sites, versions or networks.
	Clusters []string `yaml:"clusters,omitempty" local:"machine" doc:"Paths of further Cluster files; everything that they need is added."`
	Images   []Image  `yaml:"images,omitempty" doc:"Container images, as references or as mappings."`
	Charts   []Chart  `yaml:"charts,omitempty" doc:"Helm charts."`
	// Manifests are patterns of files and kustomize directories below the manifest's directory, as in path.Match.
	Manifests []YAML `yaml:"manifests,omitempty" doc:"Patterns of Kubernetes YAML files and kustomize directories, carried with their images; or mappings of path and group."`
	Files     []File `yaml:"files,omitempty" doc:"Binaries, archives, scripts and other files."`
	// Git are repositories that serve has, and that push --git brings to a Git server.
	Git []GitRepository `yaml:"git,omitempty" doc:"Git repositories, as addresses or as mappings: branches and tags with their history."`
	// Self is kkbundle's own program, for a site that has none.
	Self Self `yaml:"self,omitempty" doc:"kkbundle's own program for the site: true for the program that builds, or url or path of one for each platform."`
	// Hooks is a directory of scripts, as of install --hooks.
	Hooks string `yaml:"hooks,omitempty" local:"machine" doc:"Directory of scripts that install runs on hosts: pre_install.sh, GROUP/pre_install.sh, pre_install_HOST.sh, and the same of post_install."`
	// Groups are the parts of the bundle that can be selected, by name.
	Groups map[string]Group `yaml:"groups,omitempty" doc:"Parts of the bundle, by name, that sites and commands select; items say group: NAME, and items without a group belong to every selection."`
	// Deploy lists what `kkbundle deploy` installs into a cluster that kkbundle did not make, in this order.
	Deploy    []Addon          `yaml:"deploy,omitempty" doc:"Charts and YAML that kkbundle deploy installs into any cluster, in this order."`
	Packages  []PackageSet     `yaml:"packages,omitempty" doc:"Operating system packages by distribution."`
	Sources   []sources.Source `yaml:"sources,omitempty" doc:"Mirrors, certificates and limits of upstream hosts; local directories."`
	Overrides []Override       `yaml:"overrides,omitempty" doc:"Other addresses and checksums for files and charts that keep their names."`
	// Trust has the trusted root for images that are verified by an identity.
	Trust ImageTrust `yaml:"trust,omitempty" doc:"Whom signatures of images are checked with."`
	Zone  string     `yaml:"zone,omitempty" doc:"Zone whose addresses the catalog's additions use, such as cn."`
	// Kubernetes is the release to render charts for, unless a cluster file sets it.
	Kubernetes    Target      `yaml:"kubernetes,omitempty" doc:"Release to render charts for, unless a cluster file sets it."`
	ImageRules    []ImageRule `yaml:"imageRules,omitempty" doc:"Image fields of custom resources, in addition to kkbundle's own."`
	ExcludeImages []string    `yaml:"excludeImages,omitempty" doc:"Patterns of found images and undecided values to leave out; * matches any text."`
	// Variants are merged into the rest before the file is decoded, and are not there any more: see Variant.
	Variants map[string]Variant `yaml:"variants,omitempty" doc:"Several bundles of this manifest, by name, with what each has in another way."`

	// Variant is the name of the variant that the file was read as, "" for a file without variants. Included are the
	// files that it includes. Of a file with either, Merged is the text as a manifest of its own. They are not part of
	// the file.
	Variant  string  `yaml:"-"`
	Included []Input `yaml:"-"`
	Merged   []byte  `yaml:"-"`

	// Uses are the ways in which clusters install charts. They are not part of the file, but of the items' definition.
	Uses []ChartUse `yaml:"-"`
	// Applied are the files in groups that deploy and clusters apply, likewise.
	Applied []YAML `yaml:"-"`

	// Set has the values that the file was expanded with, nil without a table. It is not part of the file.
	Set *values.Set `yaml:"-"`

	src *document.Tree
}

// ClusterFiles returns the paths of all cluster files, in order of precedence.
func (b *Bundle) ClusterFiles() []string {
	if b.Cluster == "" {
		return b.Clusters
	}
	return append([]string{b.Cluster}, b.Clusters...)
}

// Image is a container image. In YAML it is a reference, or a mapping for further settings.
type Image struct {
	// Name is the reference as written; ImageName makes it fully qualified.
	Name string `yaml:"name" kk:"required" doc:"Reference, such as docker.io/library/nginx:1.29."`
	// Digest pins the image (or its index) to sha256:….
	Digest string  `yaml:"digest,omitempty" doc:"sha256:… of the image or its index; another digest is refused."`
	Verify *Verify `yaml:"verify,omitempty" doc:"Refuse the image unless this key, or this identity, signed it."`
	// Platforms replace the bundle's for this image.
	Platforms []string       `yaml:"platforms,omitempty" doc:"The platforms of this image, instead of the bundle's."`
	Referrers ReferrerPolicy `yaml:"referrers,omitempty" enum:"all,signatures,none" doc:"Referrers that travel with this image, instead of the bundle's setting."`
	Indexes   IndexPolicy    `yaml:"indexes,omitempty" enum:"pinned,complete,selected" doc:"Whether all platforms of this image travel, instead of the bundle's setting."`
	Group     string         `yaml:"group,omitempty" doc:"Group of this image."`
}

// SetShort implements document.Shorthand.
func (i *Image) SetShort(text string) { i.Name = text }

// MarshalYAML writes the short form if possible.
func (i Image) MarshalYAML() (any, error) {
	if i.Digest == "" && i.Verify == nil && len(i.Platforms) == 0 && i.Referrers == "" && i.Indexes == "" &&
		i.Group == "" {
		return i.Name, nil
	}
	type plain Image
	return plain(i), nil
}

// ImageTrust has what signatures without a key are checked with.
type ImageTrust struct {
	// Root is the path of a trusted root, relative to the manifest.
	Root string `yaml:"root,omitempty" local:"machine" doc:"Path of a Sigstore trusted root (trusted_root.json), for verify with an identity. The lock pins its digest, and the bundle carries it."`
}

// Verify names the key, or the identity, that must have signed an image.
type Verify struct {
	// Key is the path of a file with a public key, relative to the manifest.
	Key string `yaml:"key,omitempty" local:"machine" doc:"Path of a cosign public key."`
	// Identity and Issuer are of the certificate of a signature without a key, exactly.
	Identity string `yaml:"identity,omitempty" doc:"Instead of key: subject of the certificate of a keyless signature, an email address or URI, exactly. Needs issuer and trust.root."`
	Issuer   string `yaml:"issuer,omitempty" doc:"Issuer of the signer's token, such as https://token.actions.githubusercontent.com."`
}

// Hint says what to write in the place of an unknown field.
func (*Verify) Hint(name string) string {
	switch name {
	case "keyless", "certificateIdentity", "certificateOidcIssuer", "certificate":
		return "for signatures without a key write identity and issuer, and trust.root for the whole manifest"
	}
	return ""
}

// ChartVerify names the keys of which one must have signed a chart's provenance file.
type ChartVerify struct {
	// Key is the path of a file of OpenPGP public keys, relative to the manifest.
	Key string `yaml:"key" kk:"required" local:"machine" doc:"Path of a file of OpenPGP public keys, binary or armored."`
}

// Chart is a Helm chart, from one of three places: Repo with Name and Version, URL of an archive, or Path.
type Chart struct {
	Name string `yaml:"name,omitempty" doc:"Name of the chart in its repository."`
	// Repo is an HTTP repository (https://…) or an OCI registry path (oci://…) below which the chart lies.
	Repo string `yaml:"repo,omitempty" doc:"https://… chart repository or oci://registry/path."`
	// URL is the address of a chart archive (.tgz), for charts without a repository.
	URL string `yaml:"url,omitempty" doc:"Address of a chart archive (.tgz)."`
	// Version is a version or a range such as 4.14.x.
	Version string `yaml:"version,omitempty" doc:"A version or a range of versions, such as 4.14.x."`
	// Path is a local chart directory or archive, relative to the manifest.
	Path string `yaml:"path,omitempty" local:"machine" doc:"A local chart directory or archive."`
	// Values are paths of values files, relative to the manifest, used to render the chart and find its images.
	Values []string `yaml:"values,omitempty" local:"machine" doc:"Values files for rendering the chart to find its images."`
	// Verify requires a signed provenance file.
	Verify *ChartVerify `yaml:"verify,omitempty" doc:"Refuse the chart unless this key signed its provenance file (.prov)."`
	// ImagesListed means the chart is not rendered, because images lists all of its images.
	ImagesListed bool `yaml:"imagesListed,omitempty" doc:"Do not render the chart: all of its images are listed under images."`
	// Group is that of the chart and of the images found in it.
	Group string `yaml:"group,omitempty" doc:"Group of this chart, and of the images that only it and others of the group need."`
}

// File is a file to fetch: one for each platform if its URL or path has placeholders, else one for all.
type File struct {
	Name string `yaml:"name" kk:"required" doc:"Short name of the file."`
	// URL is https://…, http://… or file://…, with the placeholders {os}, {arch} and {x86arch}.
	URL     string `yaml:"url,omitempty" doc:"https://…; {os} {arch} {x86arch} stand for those of each platform."`
	Path    string `yaml:"path,omitempty" local:"machine" doc:"A local file instead of a URL, relative to the manifest; same placeholders."`
	Version string `yaml:"version,omitempty" doc:"Version of the file's content; for people."`
	// SHA256 is the expected content by platform.
	SHA256 Sums `yaml:"sha256,omitempty" doc:"Expected sha256 by platform, or one for a file that all platforms share."`
	// Checksums is the URL of an upstream checksum file, with the same placeholders as URL.
	Checksums string          `yaml:"checksums,omitempty" doc:"Address of upstream's checksums: one hash, or lines of hash and file name."`
	Mode      scalar.FileMode `yaml:"mode,omitempty" doc:"Permissions in octal, such as 0755."`
	// Platforms replace the bundle's for this file; only for a file that differs by platform.
	Platforms []string `yaml:"platforms,omitempty" doc:"The platforms of this file, instead of the bundle's."`
	Group     string   `yaml:"group,omitempty" doc:"Group of this file."`
}

// Sums are sha256 digests, 64 hexadecimal digits, by platform. In YAML a single value stands for all platforms.
type Sums map[string]string

// SetShort implements document.Shorthand.
func (s *Sums) SetShort(text string) { *s = Sums{scalar.AllPlatforms: text} }

// MarshalYAML writes the short form if it was read.
func (s Sums) MarshalYAML() (any, error) {
	if all, ok := s[scalar.AllPlatforms]; ok && len(s) == 1 {
		return all, nil
	}
	return map[string]string(s), nil
}

// ParseBundle reads a Bundle. The error is Problems. The Bundle is never nil: of a file with problems it has the
// values that could be read, for checks that find the other problems. Values of its table that must be given have
// their examples.
func ParseBundle(file string, data []byte) (*Bundle, error) {
	return ParseBundleWith(file, data, func(t values.Table, src *document.Tree) (*values.Set, error) {
		return t.Resolve(context.Background(), src, values.Options{Sample: true})
	})
}

// A ResolveFunc returns the values of the table of a manifest, whose places src knows.
type ResolveFunc func(t values.Table, src *document.Tree) (*values.Set, error)

// ParseBundleWith is ParseBundle with the values that resolve returns, which is only asked for a file with a table. Of
// a file with variants it reads the first.
func ParseBundleWith(file string, data []byte, resolve ResolveFunc) (*Bundle, error) {
	return ParseVariant(file, data, nil, "", resolve)
}

// ParseVariant is ParseBundleWith of a variant; the error is a *VariantError if the file lacks it. dir is the directory
// of the file, with those that it includes; nil refuses includes.
func ParseVariant(file string, data []byte, dir fs.FS, variant string, resolve ResolveFunc) (*Bundle, error) {
	b := &Bundle{}
	src, err := document.Parse(file, data, formatOf(KindBundle).Limits)
	if err != nil {
		return b, err
	}
	own := src.Root
	if b.Included, err = mergeIncluded(src, dir); err != nil {
		return b, err
	}
	if b.Variant, err = chooseVariant(src, variant); err != nil {
		return b, err
	}
	if src.Root != own {
		if b.Merged, err = mergedText(src, b.Variant); err != nil {
			return b, err
		}
	}
	if b.Set, err = expandBundle(src, data, resolve); err != nil {
		return b, err
	}
	_, err = decodeTree(src, KindBundle, b, func(c *checker) {
		b.src = c.Tree
		bundleChecker{c}.check(b)
	})
	return b, err
}
