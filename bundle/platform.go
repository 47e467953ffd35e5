package bundle

import (
	"context"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// ForPlatform returns the item with the single manifest of one platform as its root, instead of an index. Without
// wanted (nil) there must be only one manifest. An item without an index is returned unchanged if its platform is
// wanted or it has none.
func (c *Catalog) ForPlatform(ctx context.Context, it Item, wanted func(platform string) bool) (Item, error) {
	if p := it.Descriptor.Platform; p != nil && wanted != nil && !wanted(PlatformString(p)) {
		return it, fmt.Errorf("%s: no manifest for the requested platform", it)
	}
	if classOf(it.Descriptor.MediaType) != classIndex {
		return it, nil
	}
	absent, err := absentSet(it)
	if err != nil {
		return it, err
	}
	m := &manifestWalk{c: c, absent: absent}
	if err := m.index(ctx, it.Descriptor.Digest, 0); err != nil {
		return it, fmt.Errorf("%s: %w", it, err)
	}
	var found []ocispec.Descriptor
	var there []string
	for _, d := range m.manifests {
		p := PlatformString(d.Platform)
		there = append(there, p)
		if wanted == nil || wanted(p) {
			found = append(found, d)
		}
	}
	if len(found) == 0 || wanted == nil && len(found) > 1 {
		return it, fmt.Errorf("%s: several platforms: choose one with --platform: %s", it, strings.Join(there, ", "))
	}
	one := found[0]
	it.Descriptor = ocispec.Descriptor{
		MediaType: one.MediaType, Digest: one.Digest, Size: one.Size,
		Platform: one.Platform,
	}
	it.Absent = nil
	return it, nil
}

// A manifestWalk collects the manifests below an index that the bundle holds, in the index's order.
type manifestWalk struct {
	c         *Catalog
	absent    map[format.Sum]bool
	descent   Descent
	manifests []ocispec.Descriptor
}

func (m *manifestWalk) index(ctx context.Context, index digest.Digest, depth int) error {
	if first, err := m.descent.Enter(index, depth); err != nil || !first {
		return err
	}
	children, err := m.c.children(ctx, index, &m.descent)
	if err != nil {
		return err
	}
	for _, d := range children {
		sum, err := format.ParseDigest(d.Digest)
		if err != nil {
			return fmt.Errorf("index %s: %w", index, err)
		}
		if _, absent := m.absent[sum]; absent || PlatformString(d.Platform) == attestationPlatform {
			continue
		}
		switch classOf(d.MediaType) {
		case classIndex:
			if err := m.index(ctx, d.Digest, depth+1); err != nil {
				return err
			}
		case classManifest:
			m.manifests = append(m.manifests, d)
		}
	}
	return nil
}

// children reads the references of an index.
func (c *Catalog) children(ctx context.Context, index digest.Digest, d *Descent) ([]ocispec.Descriptor, error) {
	data, err := c.ReadBlob(ctx, index, MaxManifest)
	if err != nil {
		return nil, err
	}
	var doc ocispec.Index
	if err := DecodeManifest(data, &doc); err != nil {
		return nil, fmt.Errorf("index %s: %w", index, err)
	}
	return doc.Manifests, d.Count(len(doc.Manifests))
}
