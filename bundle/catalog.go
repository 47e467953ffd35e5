package bundle

import (
	"context"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Catalog is a bundle's index and manifests: the part of a Reader that needs no contents, and the only local part of
// a bundle in a registry (see Remote). It is safe for concurrent use if the bundle is.
type Catalog struct {
	index    Index
	identity digest.Digest
	blobs    blobSource
}

// Index returns the bundle's index. The caller must not change it.
func (c *Catalog) Index() Index { return c.index }

// Digest returns the bundle's identity, the sha256 of its index.json.
func (c *Catalog) Digest() digest.Digest { return c.identity }

// Find returns the item of that kind and reference. A platform ("linux/arm64": any variant; "linux/arm/v7": only this
// one) selects the item for it, or one without a platform. "" selects the first in the index's order.
func (c *Catalog) Find(kind, ref, platform string) (Item, bool) {
	var general *Item
	for i := range c.index.Items {
		it := &c.index.Items[i]
		if it.Kind != kind || it.Ref != ref {
			continue
		}
		has := PlatformString(it.Descriptor.Platform)
		switch {
		case platform == "" || has == platform || strings.HasPrefix(has, platform+"/"):
			return *it, true
		case has == "" && general == nil:
			general = it
		}
	}
	if general == nil {
		return Item{}, false
	}
	return *general, true
}

// ReadBlob returns a whole blob of at most max bytes, checked against its digest.
func (c *Catalog) ReadBlob(ctx context.Context, d digest.Digest, max int64) ([]byte, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	return c.blobs.read(ctx, s, max)
}
