package manifest

import (
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Item kinds, as in a Pin, a Need and a bundle's index.
const (
	ItemImage = "image"
	ItemChart = "chart"
	ItemFile  = "file"
	// ItemReferrer is an artifact attached to an image: a signature, an attestation, an SBOM.
	ItemReferrer = "referrer"
	// ItemGit is a Git repository.
	ItemGit = "git"
	// ItemTool is kkbundle's own program.
	ItemTool = "tool"
)

// A Need is an item that an install task requires.
type Need struct {
	// Kind is ItemFile, ItemImage or ItemChart.
	Kind string
	// Name is a component of the catalog.
	Name string
}

// A Demand is a need with its users.
type Demand struct {
	Need
	// Tasks are the names of the tasks that need it, in execution order.
	Tasks []string
	// Roles are those of these tasks' hosts, sorted; none if only this machine uses it.
	Roles []Role
}

// A Verification is the source of a Pin's digest: what vouches for the content.
type Verification string

// The verifications, from the strongest to the weakest.
const (
	// VerifiedManifest means the manifest itself contains the digest.
	VerifiedManifest Verification = "manifest"
	// VerifiedSignature means a signature by a key that the manifest or the machine names covers the digest.
	VerifiedSignature Verification = "signature"
	// VerifiedUpstream means upstream's own server published the digest, and was asked over TLS.
	VerifiedUpstream Verification = "upstream"
	// VerifiedMirror means a server published the digest that is not upstream's own, or that was asked without TLS.
	// Whoever controls it can change item and digest together.
	VerifiedMirror Verification = "mirror"
	// VerifiedFirstUse means no published digest: it is that of the first download.
	VerifiedFirstUse Verification = "first use"
	// VerifiedUnsigned means a package of a repository whose missing signature the manifest accepts (allowUnsigned).
	VerifiedUnsigned Verification = "unsigned"
)

// Lock is the result of resolving a Bundle: every item with its digest.
type Lock struct {
	APIVersion string   `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string   `yaml:"kind" kk:"required" doc:"Lock"`
	Metadata   Metadata `yaml:"metadata" kk:"required" doc:"Name and version of the bundle."`
	// Manifest is the Bundle's Fingerprint.
	Manifest string `yaml:"manifest" kk:"required" doc:"Fingerprint of the manifest's items."`
	// Variants are those of the manifest. Then Values and Undecided are there, and not here.
	Variants []LockedVariant `yaml:"variants,omitempty" doc:"The manifest's variants, with what each has alone."`
	Items    []Pin           `yaml:"items,omitempty" doc:"The pinned items."`
	// Values are those of the manifest's table at the time of the build.
	Values []LockedValue `yaml:"values,omitempty" doc:"Values that the manifest was read with."`
	// Kubeadm has, by release, the images that kubeadm itself listed when the lock was made.
	Kubeadm map[string]catalogfile.KubeadmImages `yaml:"kubeadm,omitempty" doc:"By release of Kubernetes, the tags of the images that its kubeadm asks for."`
	// Inputs are the files that the manifest includes, and those that were searched for images, or used in the search:
	// YAML, values and local charts.
	Inputs []Input `yaml:"inputs,omitempty" doc:"Files that the manifest includes, and those in which, or with which, images were found."`
	// Undecided are texts in them that may be images, each with its place.
	Undecided []string `yaml:"undecided,omitempty" doc:"Texts that may be images and match no item, with their places."`
}

// Input is a file beside the manifest that affects its items or the images found.
type Input struct {
	// Path is relative to the manifest, unless it begins with a slash.
	Path string `yaml:"path" kk:"required" doc:"Path relative to the manifest, or absolute."`
	// Digest is the digest of the file, or of a chart directory's archive.
	Digest digest.Digest `yaml:"digest" kk:"required" doc:"Digest of the file, or of a chart directory's archive."`
	// Variants have this input; none is all.
	Variants []string `yaml:"variants,omitempty" doc:"Variants that have this input; none is all."`
}

// Pin is one item with its digest.
type Pin struct {
	// Kind is ItemImage, ItemChart, ItemFile, ItemReferrer, ItemGit or ItemTool.
	Kind string `yaml:"kind" kk:"required" enum:"image,chart,file,referrer,git,tool" doc:"Kind of the item."`
	// Ref is the item's upstream reference; see ImageName, ChartRef and FileURL. A referrer has its repository and @
	// and its digest, or : and its tag where cosign attached it by a tag.
	Ref     string `yaml:"ref" kk:"required" doc:"Upstream reference."`
	Name    string `yaml:"name" kk:"required" doc:"Name of the item."`
	Version string `yaml:"version,omitempty" doc:"Version of the item."`
	// Platform is set for a file that differs by platform.
	Platform string `yaml:"platform,omitempty" doc:"Platform of a file."`
	// URL is the address of the bytes, if Ref is not. For a package in a disk image it is PackageInImage.
	URL string `yaml:"url,omitempty" doc:"Address of a file or chart archive."`
	// From is the address of an override from which the bytes were fetched.
	From string `yaml:"from,omitempty" doc:"Address of an override that the bytes came from."`
	// Checksums is the address of the checksum file that a file's digest was read from, after overrides.
	Checksums string `yaml:"checksums,omitempty" doc:"Address of the checksum file that the digest of a file came from."`
	// Digest and Size are of the image's manifest or index, of the chart archive, of the file, or of the manifest of a
	// Git repository.
	Digest digest.Digest `yaml:"digest" kk:"required" doc:"Digest of the content."`
	Size   int64         `yaml:"size" doc:"Size in bytes."`
	// Provenance is the digest of the signed file (.prov) beside a chart archive, "" if there was none.
	Provenance digest.Digest `yaml:"provenance,omitempty" doc:"Digest of a chart's provenance file."`
	// MediaType is the type of an image's manifest or index, or of a referrer's.
	MediaType string `yaml:"mediaType,omitempty" doc:"Media type of the manifest."`
	// ArtifactType is the type of a referrer.
	ArtifactType string `yaml:"artifactType,omitempty" doc:"Artifact type of a referrer."`
	// Subject is the digest that a referrer is attached to: an image's manifest or index, or another referrer.
	Subject digest.Digest `yaml:"subject,omitempty" doc:"Digest of the image that a referrer belongs to."`
	// Platforms are the selected platforms of an image with several.
	Platforms []string `yaml:"platforms,omitempty" doc:"Platforms of an image."`
	// Complete means that all platforms of the image's index are in the bundle, whatever Platforms has.
	Complete bool `yaml:"complete,omitempty" doc:"All platforms of the image's index are in the bundle."`
	// Lacks are the requested platforms that upstream does not have (PolicyWarn).
	Lacks []string `yaml:"lacks,omitempty" doc:"Platforms that upstream lacks."`
	// Referrers is ReferrersUnknown if upstream could not list all attached artifacts of an image.
	Referrers string `yaml:"referrers,omitempty" enum:"unknown" doc:"unknown: the lookup of signatures and other referrers failed."`
	// Key is the path of the key that signed an image, relative to the manifest; KeyDigest the key's fingerprint: the
	// sha256 of its DER form.
	Key       string        `yaml:"key,omitempty" doc:"Public key that must have signed the image."`
	KeyDigest digest.Digest `yaml:"keyDigest,omitempty" doc:"Digest of that key."`
	// Identity and Issuer are of the certificate that signed an image; Root is the path of the trusted root that
	// vouches for it, relative to the manifest, and RootDigest its digest.
	Identity   string          `yaml:"identity,omitempty" doc:"Identity that must have signed the image."`
	Issuer     string          `yaml:"issuer,omitempty" doc:"Issuer of that identity."`
	Root       string          `yaml:"root,omitempty" doc:"Trusted root that vouches for that identity."`
	RootDigest digest.Digest   `yaml:"rootDigest,omitempty" doc:"Digest of that root."`
	Mode       scalar.FileMode `yaml:"mode,omitempty" doc:"Permissions in octal."`
	// Git is set for a Git repository.
	Git *LockedGit `yaml:"git,omitempty" doc:"Refs of a Git repository."`
	// Package is the name of an operating system package; Provides are the other names under install that it provides.
	Package  string   `yaml:"package,omitempty" doc:"Name of an operating system package."`
	Provides []string `yaml:"provides,omitempty" doc:"Further names under install that select the package."`
	// Groups are those of the manifest that the item belongs to; none for an item of every selection.
	Groups []string `yaml:"groups,omitempty" doc:"Groups of the item; none for an item of every selection."`
	// Verified is the source of the digest.
	Verified Verification `yaml:"verified" kk:"required" enum:"manifest,signature,upstream,mirror,first use,unsigned" doc:"What vouches for the digest: the manifest, a signature, upstream's server over TLS, a mirror or a server without TLS, the first download, or nothing (unsigned)."`
	// WantedBy are the first places where an image was found that neither the manifest nor the catalog lists.
	WantedBy []string `yaml:"wantedBy,omitempty" doc:"Place where the image was found; not set for listed images."`
	// Variants have this pin; none is all.
	Variants []string `yaml:"variants,omitempty" doc:"Variants that have this item so; none is all."`
}

// ReferrersUnknown in a Pin means that the image's referrers could not be looked up when the lock was written.
const ReferrersUnknown = "unknown"

// IsLock reports whether data is a lock, by its kind only. The nodes of the text are enough for it: the decoder into
// Go values compares each key of an object with each other one, and a hostile file may have a million of them.
func IsLock(data []byte) bool {
	src, err := document.Parse("", data, lockLimits())
	if err != nil {
		return false
	}
	kind := src.Node("kind")
	return kind != nil && kind.Value == KindLock
}

// ParseLock reads a Lock. The error is Problems.
func ParseLock(file string, data []byte) (*Lock, error) {
	l := &Lock{}
	return decode(file, data, KindLock, l, func(c *checker) { lockChecker{c}.check(l) })
}
