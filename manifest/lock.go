package manifest

import (
	"github.com/opencontainers/go-digest"
)

// Item kinds, as in a Pin, a Need and a bundle's index.
const (
	ItemImage = "image"
	ItemChart = "chart"
	ItemFile  = "file"
	// ItemReferrer is what is attached to an image: a signature, an attestation, an SBOM.
	ItemReferrer = "referrer"
)

// A Need is something that an install task cannot do without.
type Need struct {
	// Kind is ItemFile, ItemImage or ItemChart.
	Kind string
	// Name is a component of the catalog.
	Name string
}

// A Demand is a need and who has it.
type Demand struct {
	Need
	// Tasks are the names of the tasks that need it, in the order in which they run.
	Tasks []string
	// Roles are those of the hosts that these tasks run on, sorted; none for what this machine alone uses.
	Roles []Role
}

// Who vouches for a Pin's digest.
const (
	// VerifiedManifest: the manifest itself names the digest.
	VerifiedManifest = "manifest"
	// VerifiedUpstream: upstream published it beside the item.
	VerifiedUpstream = "upstream"
	// VerifiedFirstUse: nobody; it is what came when the lock was written.
	VerifiedFirstUse = "first use"
)

// Lock is what a Bundle resolved to: every item with its digest.
type Lock struct {
	APIVersion string   `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string   `yaml:"kind" kk:"required" doc:"Lock"`
	Metadata   Metadata `yaml:"metadata" kk:"required" doc:"Name and version of the bundle."`
	// Manifest is the Bundle's Fingerprint.
	Manifest string `yaml:"manifest" kk:"required" doc:"Fingerprint of the manifest's items."`
	Items    []Pin  `yaml:"items,omitempty" doc:"The pinned items."`
	// Inputs are the files in which, or with which, images were found: YAML, values and local charts.
	Inputs []Input `yaml:"inputs,omitempty" doc:"Files in which, or with which, images were found."`
	// Undecided are texts in them that may be images, each with its place.
	Undecided []string `yaml:"undecided,omitempty" doc:"Undecided values that may be images, with their places."`
}

// Input is a file beside the manifest that decides which images are found.
type Input struct {
	// Path is relative to the manifest, unless it begins with a slash.
	Path string `yaml:"path" kk:"required" doc:"Path relative to the manifest, or absolute."`
	// Digest is that of the file, or of a chart directory's archive.
	Digest digest.Digest `yaml:"digest" kk:"required" doc:"Digest of the file, or of a chart directory's archive."`
}

// Pin is one item with its digest.
type Pin struct {
	// Kind is ItemImage, ItemChart, ItemFile or ItemReferrer.
	Kind string `yaml:"kind" kk:"required" enum:"image,chart,file,referrer" doc:"Kind of the item."`
	// Ref is the item's upstream reference; see ImageName, ChartRef and FileURL. A referrer has its repository and @ and its
	// digest, or : and its tag where cosign attached it by a tag.
	Ref     string `yaml:"ref" kk:"required" doc:"Upstream reference."`
	Name    string `yaml:"name" kk:"required" doc:"Name of the item."`
	Version string `yaml:"version,omitempty" doc:"Version of the item."`
	// Platform is set for a file that differs by platform.
	Platform string `yaml:"platform,omitempty" doc:"Platform of a file."`
	// URL is where the bytes are, where Ref does not say it. For a package in an image of a disk it is PackageInImage.
	URL string `yaml:"url,omitempty" doc:"Address of a file or chart archive."`
	// From is where an override had the bytes fetched from instead.
	From string `yaml:"from,omitempty" doc:"Address of an override that the bytes came from."`
	// Digest and Size are of the image's manifest or index, of the chart archive or of the file.
	Digest digest.Digest `yaml:"digest" kk:"required" doc:"Digest of the content."`
	Size   int64         `yaml:"size" doc:"Size in bytes."`
	// Provenance is the digest of the signed file (.prov) beside a chart archive, "" if there was none.
	Provenance digest.Digest `yaml:"provenance,omitempty" doc:"Digest of a chart's provenance file."`
	// MediaType is that of an image's manifest or index, or of a referrer's.
	MediaType string `yaml:"mediaType,omitempty" doc:"Media type of the manifest."`
	// ArtifactType says what a referrer is.
	ArtifactType string `yaml:"artifactType,omitempty" doc:"Artifact type of a referrer."`
	// Subject is what a referrer is attached to: an image's manifest or index, or another referrer.
	Subject digest.Digest `yaml:"subject,omitempty" doc:"Digest of the image that a referrer belongs to."`
	// Platforms are those that were chosen of an image with several.
	Platforms []string `yaml:"platforms,omitempty" doc:"Platforms of an image."`
	// Lacks are the platforms that an image was wanted for and that upstream does not have (PolicyWarn).
	Lacks []string `yaml:"lacks,omitempty" doc:"Platforms that upstream lacks."`
	// Referrers is ReferrersUnknown where upstream could not say all that is attached to an image.
	Referrers string `yaml:"referrers,omitempty" enum:"unknown" doc:"unknown: the lookup of signatures and other referrers failed."`
	// Key is the path of the key that signed an image, relative to the manifest; KeyDigest the key's fingerprint: the sha256
	// of its DER form.
	Key       string        `yaml:"key,omitempty" doc:"Public key that must have signed the image."`
	KeyDigest digest.Digest `yaml:"keyDigest,omitempty" doc:"Digest of that key."`
	Mode      FileMode      `yaml:"mode,omitempty" doc:"Permissions in octal."`
	// Package is the name of an operating system's package; Provides are those names of install that it answers to besides.
	Package  string   `yaml:"package,omitempty" doc:"Name of an operating system package."`
	Provides []string `yaml:"provides,omitempty" doc:"Further names under install that select the package."`
	// Verified says who vouches for the digest.
	Verified string `yaml:"verified" kk:"required" enum:"manifest,upstream,first use" doc:"Origin of the checksum: the manifest, upstream, or the first download."`
	// WantedBy are the first places where an image was found that the manifest does not list, and neither does the catalog.
	WantedBy []string `yaml:"wantedBy,omitempty" doc:"Place where the image was found; not set for listed images."`
}

// ReferrersUnknown in a Pin says that what is attached to the image could not be found out when the lock was written.
const ReferrersUnknown = "unknown"

// ParseLock reads a Lock. The error is Problems.
func ParseLock(file string, data []byte) (*Lock, error) {
	l := &Lock{}
	c, sound := decode(file, data, KindLock, l)
	if sound {
		c.lock(l)
	}
	if err := c.found.Err(); err != nil {
		return nil, err
	}
	return l, nil
}
