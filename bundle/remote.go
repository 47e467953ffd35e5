package bundle

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Need lists the blobs that an item needs.
type Need struct {
	Item  Item
	Blobs []ocispec.Descriptor // digest and size
}

// A Bringer brings blobs to the place where a Remote reads them. It may be asked for blobs already there.
type Bringer func(ctx context.Context, needs []Need) error

// A Remote is a bundle in a registry. Its index and manifests are verified by digest, up to the identity. Facts about
// other blobs are the registry's claims. Its methods may not be called concurrently.
type Remote struct {
	Catalog
	sizes map[format.Sum]int64
	local Source
	bring Bringer
}

// NewRemote returns the bundle of that identity with those blobs, and with its index.json, which must have the
// identity as digest. Manifests are brought on demand and read from local.
func NewRemote(identity digest.Digest, blobs []ocispec.Descriptor, indexJSON []byte, local Source,
	bring Bringer,
) (*Remote, error) {
	if got := digest.FromBytes(indexJSON); got != identity {
		return nil, fmt.Errorf("index.json has digest %s instead of %s", got, identity)
	}
	x, err := ParseIndex(indexJSON)
	if err != nil {
		return nil, err
	}
	r := &Remote{
		Catalog: Catalog{index: x, identity: identity}, sizes: make(map[format.Sum]int64, len(blobs)),
		local: local, bring: bring,
	}
	for _, d := range blobs {
		s, err := format.ParseDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		r.sizes[s] = d.Size
	}
	r.blobs = r
	return r, nil
}

// Stat reports whether the bundle has a blob, and its size.
func (r *Remote) Stat(d digest.Digest) (size int64, ok bool) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return 0, false
	}
	size, ok = r.sizes[s]
	return size, ok
}

// Blobs returns digest and size of every blob, sorted by digest.
func (r *Remote) Blobs() []ocispec.Descriptor {
	out := make([]ocispec.Descriptor, 0, len(r.sizes))
	for s, size := range r.sizes {
		out = append(out, ocispec.Descriptor{Digest: s.Digest(), Size: size})
	}
	slices.SortFunc(out, func(a, b ocispec.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
	return out
}

// Stored returns how many bytes the transfer of a blob takes.
func (r *Remote) Stored(d digest.Digest) int64 {
	size, _ := r.Stat(d)
	return size
}

// Size returns the bytes of all blobs.
func (r *Remote) Size() int64 {
	var n int64
	for _, size := range r.sizes {
		n += size
	}
	return n
}

// lookup finds blobs of the bundle, and those made locally.
func (r *Remote) lookup(ctx context.Context, s format.Sum) (int64, bool, error) {
	if size, ok := r.sizes[s]; ok {
		return size, true, nil
	}
	return r.local.Stat(ctx, s.Digest())
}

func (r *Remote) read(ctx context.Context, s format.Sum, most int64) ([]byte, error) {
	size, ok := r.sizes[s]
	if ok && size > most {
		return nil, fmt.Errorf("blob %s has %d bytes; at most %d were expected", s.Digest(), size, most)
	}
	_, there, err := r.local.Stat(ctx, s.Digest())
	if err != nil {
		return nil, err
	}
	if !there && ok {
		if err := r.bring(ctx, []Need{{Blobs: []ocispec.Descriptor{{Digest: s.Digest(), Size: size}}}}); err != nil {
			return nil, err
		}
	}
	return r.local.ReadBlob(ctx, s.Digest(), most)
}

// Survey returns the Contents of every item, in the order of Index().Items.
func (r *Remote) Survey(ctx context.Context) ([]Contents, error) {
	if err := r.Documents(ctx, r.index.Items); err != nil {
		return nil, err
	}
	return r.survey(ctx, nil)
}

// Documents brings the indexes and manifests of items, a whole level at once: one by one, each would cost a round trip.
// Missing or unreadable documents are left out: the later walk reports them.
func (r *Remote) Documents(ctx context.Context, items []Item) error {
	var wave []want
	for i, it := range items {
		if s, err := format.ParseDigest(it.Descriptor.Digest); err == nil {
			wave = append(wave, want{document{s, classOf(it.Descriptor.MediaType)}, i})
		}
	}
	asked := make(map[want]bool)
	for depth := 0; depth <= maxDepth; depth++ {
		wave = slices.DeleteFunc(wave, func(w want) bool {
			size, ok := r.sizes[w.sum]
			skip := !ok || size > MaxManifest || w.class > classManifest || asked[w] || len(asked) >= maxChildren
			asked[w] = true
			return skip
		})
		if len(wave) == 0 {
			return nil
		}
		if err := r.bring(ctx, r.needs(items, wave)); err != nil {
			return err
		}
		var err error
		if wave, err = r.below(ctx, items, wave); err != nil {
			return err
		}
	}
	return nil
}

// needs sorts documents by the items that want them.
func (r *Remote) needs(items []Item, wave []want) []Need {
	needs := make([]Need, len(items))
	for i, it := range items {
		needs[i].Item = it
	}
	for _, w := range wave {
		n := &needs[w.item]
		n.Blobs = append(n.Blobs, ocispec.Descriptor{Digest: w.sum.Digest(), Size: r.sizes[w.sum]})
	}
	return slices.DeleteFunc(needs, func(n Need) bool { return len(n.Blobs) == 0 })
}

// below returns the children of the indexes brought.
func (r *Remote) below(ctx context.Context, items []Item, wave []want) (next []want, err error) {
	for _, w := range wave {
		if w.class != classIndex {
			continue
		}
		absent, err := absentSet(items[w.item])
		if err != nil {
			return nil, err
		}
		data, err := r.read(ctx, w.sum, MaxManifest)
		if err != nil {
			return nil, err
		}
		children, err := parseChildren(data, w.class)
		if err != nil {
			continue // the later walk has the better error
		}
		for _, c := range children {
			if _, left := absent[c.sum]; !left {
				next = append(next, want{document{c.sum, c.class}, w.item})
			}
		}
	}
	return next, nil
}

// Needs calls visit for every blob that the items need and the bundle has, once per item and blob, like Reader.Needs.
// The error lists every blob that the bundle lacks, as *MissingError. Manifests are brought on demand.
func (r *Remote) Needs(ctx context.Context, items []Item, visit func(item Item, blob ocispec.Descriptor)) error {
	if err := r.Documents(ctx, items); err != nil {
		return err
	}
	p := problems{known: make(map[format.Sum]bool)}
	w := &walk{src: r, report: p.report}
	w.visit = func(s format.Sum, it Item) {
		if size, ok := r.sizes[s]; ok {
			visit(it, ocispec.Descriptor{Digest: s.Digest(), Size: size})
		}
	}
	if err := w.run(ctx, items); err != nil {
		return err
	}
	return p.err()
}
