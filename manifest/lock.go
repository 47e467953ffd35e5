package manifest

import (
	"github.com/opencontainers/go-digest"
)

// Item kinds, as in a Pin, a Need and a bundle's index.
const (
	ItemImage = "image"
	ItemChart = "chart"
	ItemFile  = "file"
)

// A Need is something that an install task cannot do without.
type Need struct {
	// Kind is ItemFile, ItemImage or ItemChart.
	Kind string
	// Name is a component of the catalog.
	Name string
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
	Metadata   Metadata `yaml:"metadata" kk:"required"`
	// Manifest is the Bundle's Fingerprint.
	Manifest string `yaml:"manifest" kk:"required" doc:"Fingerprint of the manifest's items."`
	Items    []Pin  `yaml:"items,omitempty"`
}

// Pin is one item with its digest.
type Pin struct {
	// Kind is ItemImage, ItemChart or ItemFile.
	Kind string `yaml:"kind" kk:"required" enum:"image,chart,file"`
	// Ref is the item's upstream reference; see ImageName, ChartRef and FileURL.
	Ref     string `yaml:"ref" kk:"required"`
	Name    string `yaml:"name" kk:"required"`
	Version string `yaml:"version,omitempty"`
	// Platform is set for a file that differs by platform.
	Platform string `yaml:"platform,omitempty"`
	// URL is where the bytes are, where Ref does not say it.
	URL string `yaml:"url,omitempty"`
	// Digest and Size are of the image's manifest or index, of the chart archive or of the file.
	Digest digest.Digest `yaml:"digest" kk:"required"`
	Size   int64         `yaml:"size"`
	// Provenance is the digest of the signed file (.prov) beside a chart archive, "" if there was none.
	Provenance digest.Digest `yaml:"provenance,omitempty"`
	// MediaType is that of an image's manifest or index.
	MediaType string `yaml:"mediaType,omitempty"`
	// Platforms are those that were chosen of an image with several.
	Platforms []string `yaml:"platforms,omitempty"`
	Mode      FileMode `yaml:"mode,omitempty"`
	// Verified says who vouches for the digest.
	Verified string `yaml:"verified" kk:"required" enum:"manifest,upstream,first use"`
}

// ParseLock reads a Lock. The error is Problems.
func ParseLock(file string, data []byte) (*Lock, error) {
	l := &Lock{}
	c, sound := decode(file, data, KindLock, l)
	if sound {
		c.lock(l)
	}
	if err := c.found.err(); err != nil {
		return nil, err
	}
	return l, nil
}
