package cli

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// A listing is what a bundle or a lock has.
type listing struct {
	name, version string
	identity      digest.Digest // "" of a lock
	items         []listedItem
	catalog       *bundle.Catalog // nil of a lock
	blobs         blobs           // nil of a lock
	end           func() error
}

// blobs are what a bundle has, wherever it is.
type blobs interface {
	Blobs() []ocispec.Descriptor
	Stat(d digest.Digest) (size int64, ok bool)
	Stored(d digest.Digest) int64
	Needs(ctx context.Context, items []bundle.Item, visit func(item bundle.Item, blob ocispec.Descriptor)) error
}

// A listedItem is an item as a bundle's index or a lock says it.
type listedItem struct {
	kind, ref, name, version, platform string
	digest                             digest.Digest // of its root; in a lock of what a file or archive is
	platforms                          string        // those chosen of an image
	size                               int64         // as far as a lock says it
	at                                 int           // in the bundle's index
}

// isText says that a file is YAML that people or lock wrote, by its name.
func isText(path string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, strings.ToLower(filepath.Ext(path)))
}

// isLock says that text is a lock, without saying that it is a good one.
func isLock(data []byte) bool {
	var head struct {
		Kind string `yaml:"kind"`
	}
	return yaml.Unmarshal(data, &head) == nil && head.Kind == manifest.KindLock
}

// openListing reads a bundle, here or in a registry, or a lock. Close it afterwards.
func (g *globals) openListing(ctx context.Context, path string, login loginFlags) (*listing, error) {
	if isOCI(path) {
		return g.remoteListing(ctx, path, login)
	}
	if isText(path) {
		data, err := build.ReadFile(path)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(path, data)
		if err != nil {
			return nil, err
		}
		return lockListing(l), nil
	}
	r, err := g.openBundle(path)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		_ = r.Close() // what failed first is the one to tell
		return nil, err
	}
	return bundleListing(&r.Catalog, contents, r, r.Close), nil
}

func (g *globals) remoteListing(ctx context.Context, address string, login loginFlags) (*listing, error) {
	r, end, err := g.openRemote(ctx, address, login)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		end()
		return nil, err
	}
	return bundleListing(&r.Catalog, contents, r, func() error { end(); return nil }), nil
}

func (l *listing) Close() error {
	if l.end == nil {
		return nil
	}
	return l.end()
}

func lockListing(lock *manifest.Lock) *listing {
	l := &listing{name: lock.Metadata.Name, version: lock.Metadata.Version}
	for _, p := range lock.Items {
		l.items = append(l.items, listedItem{
			kind: p.Kind, ref: p.Ref, name: p.Name, version: p.Version, platform: p.Platform,
			digest: p.Digest, platforms: strings.Join(p.Platforms, ","), size: p.Size,
		})
	}
	return l
}

func bundleListing(c *bundle.Catalog, contents []bundle.Contents, has blobs, end func() error) *listing {
	x := c.Index()
	l := &listing{name: x.Name, version: x.Version, identity: c.Digest(), catalog: c, blobs: has, end: end}
	for i, it := range x.Items {
		one := listedItem{
			kind: it.Kind, ref: it.Ref, name: it.Name, version: it.Version, digest: it.Descriptor.Digest,
			platform: bundle.PlatformString(it.Descriptor.Platform), at: i,
		}
		if it.Kind == bundle.KindImage {
			one.platform, one.platforms = "", strings.Join(contents[i].Platforms, ",")
		}
		l.items = append(l.items, one)
	}
	return l
}

// likeLock makes the items of a bundle comparable with a lock's, which has no documents, and of files and chart archives
// the content's digest instead of the artifact's.
func (l *listing) likeLock(ctx context.Context) error {
	if l.catalog == nil {
		return nil
	}
	all := l.catalog.Index().Items
	var items []listedItem
	for _, it := range l.items {
		switch it.kind {
		case bundle.KindFile, bundle.KindChart:
			layer, err := l.catalog.ContentOf(ctx, all[it.at])
			if err != nil {
				return err
			}
			if it.kind == bundle.KindFile || !strings.HasPrefix(it.ref, "oci://") {
				it.digest = layer.Digest
			}
		case bundle.KindImage, bundle.KindReferrer:
		default:
			continue
		}
		items = append(items, it)
	}
	l.items = items
	return nil
}
