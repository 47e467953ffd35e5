// Package diff compares bundles and locks: added, removed, updated and changed items, and the bytes to transfer.
package diff

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Result has the differences of two bundles or locks.
type Result struct {
	Version int      `json:"version"` // 1
	Old     Side     `json:"old"`
	New     Side     `json:"new"`
	Changes []Change `json:"changes"`
	Same    int      `json:"same"`  // items
	Carry   *Bytes   `json:"carry"` // null if one side is a lock
}

// A Side is one of the compared bundles or locks.
type Side struct {
	Path    string        `json:"path"`
	Name    string        `json:"name"`
	Version string        `json:"version"`
	Digest  digest.Digest `json:"digest,omitempty"` // the identity of a bundle
}

// A Change is an item that differs.
type Change struct {
	Change       string        `json:"change"` // added, removed, updated or changed
	Kind         string        `json:"kind"`
	Name         string        `json:"name"` // the reference, or of an update the name
	Platform     string        `json:"platform,omitempty"`
	OldRef       string        `json:"oldRef,omitempty"`
	NewRef       string        `json:"newRef,omitempty"`
	OldVersion   string        `json:"oldVersion,omitempty"`
	NewVersion   string        `json:"newVersion,omitempty"`
	OldDigest    digest.Digest `json:"oldDigest,omitempty"`
	NewDigest    digest.Digest `json:"newDigest,omitempty"`
	OldPlatforms string        `json:"oldPlatforms,omitempty"` // of an image
	NewPlatforms string        `json:"newPlatforms,omitempty"`
	// Refs are those of a Git repository that differ.
	Refs []Ref `json:"refs,omitempty"`
	// of blobs that OLD lacks and no change above counts; 0 if a lock has no size
	Bytes int64 `json:"bytes"`

	old, new *item
}

// A Ref is a branch or tag of a Git repository, with its commit, or annotated tag, in both.
type Ref struct {
	Name string `json:"name"`
	Old  string `json:"old,omitempty"` // "" if only NEW has it
	New  string `json:"new,omitempty"`
}

// Bytes counts the blobs that only NEW has and the blobs that both have.
type Bytes struct {
	Blobs       int   `json:"blobs"`
	Bytes       int64 `json:"bytes"`  // uncompressed
	Stored      int64 `json:"stored"` // compressed in NEW; estimated for blobs that share a frame
	SharedBlobs int   `json:"sharedBlobs"`
	SharedBytes int64 `json:"sharedBytes"`
}

// Compare returns the differences of after from before.
func Compare(ctx context.Context, before, after *Listing) (*Result, error) {
	r := &Result{
		Version: 1,
		Old:     Side{Name: before.name, Version: before.version, Digest: before.identity},
		New:     Side{Name: after.name, Version: after.version, Digest: after.identity},
	}
	bundles := before.catalog != nil && after.catalog != nil
	if !bundles {
		if err := errors.Join(before.likeLock(ctx), after.likeLock(ctx)); err != nil {
			return nil, err
		}
	}
	r.Changes, r.Same = changes(before.items, after.items)
	if err := r.refs(ctx, before, after); err != nil {
		return nil, err
	}
	if !bundles {
		for i := range r.Changes {
			if c := &r.Changes[i]; c.new != nil {
				c.Bytes = c.new.size
			}
		}
		return r, nil
	}
	return r, r.carry(ctx, before, after)
}

// refs compares the refs of Git repositories.
func (r *Result) refs(ctx context.Context, before, after *Listing) error {
	for i := range r.Changes {
		c := &r.Changes[i]
		if c.Kind != bundle.KindGit {
			continue
		}
		was, err := before.refs(ctx, c.old)
		if err != nil {
			return err
		}
		now, err := after.refs(ctx, c.new)
		if err != nil {
			return err
		}
		names := slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(now)))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if was[name] != now[name] {
				c.Refs = append(c.Refs, Ref{name, was[name], now[name]})
			}
		}
	}
	return nil
}

// carry counts the bytes that only NEW has.
func (r *Result) carry(ctx context.Context, before, after *Listing) error {
	r.Carry = &Bytes{}
	for _, b := range after.blobs.Blobs() {
		if _, ok := before.blobs.Stat(b.Digest); ok {
			r.Carry.SharedBlobs++
			r.Carry.SharedBytes += b.Size
			continue
		}
		r.Carry.Blobs++
		r.Carry.Bytes += b.Size
		r.Carry.Stored += after.blobs.Stored(b.Digest)
	}
	id := func(it bundle.Item) string { return it.String() + " " + it.Descriptor.Digest.String() }
	var items []bundle.Item
	needs := map[string]*Change{}
	for i := range r.Changes {
		if c := &r.Changes[i]; c.new != nil {
			it := after.catalog.Index().Items[c.new.at]
			items, needs[id(it)] = append(items, it), c
		}
	}
	seen := map[digest.Digest]bool{}
	return after.blobs.Needs(ctx, items, func(it bundle.Item, b ocispec.Descriptor) {
		if _, ok := before.blobs.Stat(b.Digest); !ok && !seen[b.Digest] {
			seen[b.Digest] = true
			needs[id(it)].Bytes += b.Size
		}
	})
}

// changes returns the different items, sorted by kind, name and platform, and the number of equal items.
func changes(before, after []item) (all []Change, same int) {
	type key struct{ kind, ref, platform string }
	old := map[key]*item{}
	for i := range before {
		it := &before[i]
		old[key{it.kind, it.ref, it.platform}] = it
	}
	var added []*item
	for i := range after {
		it := &after[i]
		k := key{it.kind, it.ref, it.platform}
		was, ok := old[k]
		delete(old, k)
		switch {
		case !ok:
			added = append(added, it)
		case was.digest == it.digest && (was.platforms == it.platforms || was.platforms == "" || it.platforms == ""):
			same++
		default:
			all = append(all, newChange("changed", was, it))
		}
	}
	var removed []*item
	for i := range before {
		it := &before[i]
		if old[key{it.kind, it.ref, it.platform}] == it {
			removed = append(removed, it)
		}
	}
	all = append(all, updates(removed, added)...)
	slices.SortStableFunc(all, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Platform, b.Platform),
			cmp.Compare(a.OldRef+a.NewRef, b.OldRef+b.NewRef))
	})
	return all, same
}

// updates pairs removed and added items with the same name and different versions, newest first.
func updates(removed, added []*item) (all []Change) {
	type key struct{ kind, name, platform string }
	versions := map[key][2][]*item{}
	for side, items := range [][]*item{removed, added} {
		for _, it := range items {
			k := key{it.kind, it.name, it.platform}
			if it.name == "" {
				k.name = it.ref
			}
			pair := versions[k]
			pair[side] = append(pair[side], it)
			versions[k] = pair
		}
	}
	for _, pair := range versions {
		for _, side := range pair {
			slices.SortFunc(side, func(a, b *item) int {
				return cmp.Or(manifest.CompareVersions(b.version, a.version), cmp.Compare(a.ref, b.ref))
			})
		}
		n := min(len(pair[0]), len(pair[1]))
		for i := range n {
			all = append(all, newChange("updated", pair[0][i], pair[1][i]))
		}
		for _, it := range pair[0][n:] {
			all = append(all, newChange("removed", it, nil))
		}
		for _, it := range pair[1][n:] {
			all = append(all, newChange("added", nil, it))
		}
	}
	return all
}

func newChange(what string, before, after *item) Change {
	c := Change{Change: what, old: before, new: after}
	if before != nil {
		c.Kind, c.Name, c.Platform = before.kind, before.ref, before.platform
		c.OldRef, c.OldVersion, c.OldDigest, c.OldPlatforms = before.ref, before.version, before.digest,
			before.platforms
	}
	if after != nil {
		c.Kind, c.Name, c.Platform = after.kind, after.ref, after.platform
		c.NewRef, c.NewVersion, c.NewDigest, c.NewPlatforms = after.ref, after.version, after.digest, after.platforms
	}
	if what == "updated" && after.name != "" {
		c.Name = after.name
	}
	return c
}

// A Listing has the items of a bundle or a lock.
type Listing struct {
	name, version string
	identity      digest.Digest // "" of a lock
	items         []item
	catalog       *bundle.Catalog // nil of a lock
	blobs         blobs           // nil of a lock
	end           func() error
}

// blobs is the content of a bundle, local or published.
type blobs interface {
	Blobs() []ocispec.Descriptor
	Stat(d digest.Digest) (size int64, ok bool)
	Stored(d digest.Digest) int64
	Needs(ctx context.Context, items []bundle.Item, visit func(item bundle.Item, blob ocispec.Descriptor)) error
}

// An item is an entry of a bundle's index or of a lock.
type item struct {
	kind, ref, name, version, platform string
	digest                             digest.Digest // of its root; in a lock, of the content of a file or archive
	platforms                          string        // of an image
	size                               int64         // from a lock
	at                                 int           // in the bundle's index

	git *manifest.LockedGit // from a lock
}

// refs returns the refs of a Git repository, none of no item.
func (l *Listing) refs(ctx context.Context, it *item) (map[string]string, error) {
	list := map[string]string{}
	switch {
	case it == nil:
	case it.git != nil:
		for _, r := range it.git.Refs {
			list[r.Name] = r.ID
		}
	case l.catalog != nil:
		_, data, err := l.catalog.Git(ctx, l.catalog.Index().Items[it.at], git.MaxDocument)
		if err != nil {
			return nil, err
		}
		_, d, err := git.ParseDocument(data)
		if err != nil {
			return nil, err
		}
		for _, r := range d.Refs {
			list[r.Name] = r.ID
		}
	}
	return list, nil
}

// Close closes the bundle.
func (l *Listing) Close() error {
	if l.end == nil {
		return nil
	}
	return l.end()
}

// OfLock returns the listing of a lock.
func OfLock(lock *manifest.Lock) *Listing {
	l := &Listing{name: lock.Metadata.Name, version: lock.Metadata.Version}
	for _, p := range lock.Items {
		l.items = append(l.items, item{
			kind: p.Kind, ref: p.Ref, name: p.Name, version: p.Version, platform: p.Platform,
			digest: p.Digest, platforms: strings.Join(p.Platforms, ","), size: p.Size, git: p.Git,
		})
	}
	return l
}

// OfBundle returns the listing of a bundle. has counts its blobs; end closes it.
func OfBundle(c *bundle.Catalog, contents []bundle.Contents, has blobs, end func() error) *Listing {
	x := c.Index()
	l := &Listing{name: x.Name, version: x.Version, identity: c.Digest(), catalog: c, blobs: has, end: end}
	for i, it := range x.Items {
		one := item{
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

// likeLock makes the items of a bundle comparable with a lock's. A lock has no documents, and for files and chart
// archives the digest of the content, not of the artifact.
func (l *Listing) likeLock(ctx context.Context) error {
	if l.catalog == nil {
		return nil
	}
	all := l.catalog.Index().Items
	var items []item
	for _, it := range l.items {
		switch it.kind {
		case bundle.KindFile, bundle.KindTool, bundle.KindChart:
			layer, err := l.catalog.ContentOf(ctx, all[it.at])
			if err != nil {
				return err
			}
			if it.kind != bundle.KindChart || !strings.HasPrefix(it.ref, "oci://") {
				it.digest = layer.Digest
			}
		case bundle.KindImage, bundle.KindReferrer, bundle.KindGit:
		default:
			continue
		}
		items = append(items, it)
	}
	l.items = items
	return nil
}
