package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

const (
	attestationPlatform = "unknown/unknown" // platform of BuildKit's provenance and SBOMs beside images
	annotationAttested  = "vnd.docker.reference.digest"
)

// Narrow returns the item limited to the platforms that wanted accepts ("os/architecture[/variant]"). Children of its
// indexes for other platforms become absent, with their attestations. It returns false if nothing is left. Items
// without a platform stay.
func (c *Catalog) Narrow(ctx context.Context, it Item, wanted func(platform string) bool) (Item, bool, error) {
	if p := it.Descriptor.Platform; p != nil {
		return it, wanted(PlatformString(p)), nil
	}
	if classOf(it.Descriptor.MediaType) != classIndex {
		return it, true, nil
	}
	n := &narrowing{
		c: c, wanted: wanted, descent: &Descent{}, had: make(map[digest.Digest]bool),
		kept: make(map[digest.Digest]bool), dropped: make(map[digest.Digest]bool),
	}
	for _, d := range it.Absent {
		n.had[d] = true
	}
	left, err := n.index(ctx, it.Descriptor.Digest, 0)
	if err != nil {
		return it, false, fmt.Errorf("%s: %w", it, err)
	}
	it.Absent = nil
	for d := range n.dropped {
		if !n.kept[d] {
			it.Absent = append(it.Absent, d)
		}
	}
	slices.Sort(it.Absent)
	return it, left, nil
}

type narrowing struct {
	c             *Catalog
	wanted        func(platform string) bool
	descent       *Descent
	had           map[digest.Digest]bool // already absent
	kept, dropped map[digest.Digest]bool // children
}

// index decides about the children of an index and reports whether any is left. It decides once: an index that is not
// kept when it is named again has nothing left.
func (n *narrowing) index(ctx context.Context, d digest.Digest, depth int) (left bool, err error) {
	if first, err := n.descent.Enter(d, depth); err != nil || !first {
		return false, err
	}
	children, err := n.c.children(ctx, d, n.descent)
	if err != nil {
		return false, err
	}
	for _, child := range children {
		if child.Platform != nil && PlatformString(child.Platform) == attestationPlatform {
			continue
		}
		keep := !n.had[child.Digest] && (child.Platform == nil || n.wanted(PlatformString(child.Platform)))
		if keep && classOf(child.MediaType) == classIndex && !n.kept[child.Digest] {
			inner := *n
			inner.dropped = make(map[digest.Digest]bool) // merged only if the inner index stays
			if keep, err = inner.index(ctx, child.Digest, depth+1); err != nil {
				return false, err
			}
			if keep {
				maps.Copy(n.dropped, inner.dropped)
			}
		}
		n.note(child.Digest, keep)
		left = left || keep
	}
	for _, child := range children { // Attestations follow their subjects, in any order.
		if child.Platform != nil && PlatformString(child.Platform) == attestationPlatform {
			of := digest.Digest(child.Annotations[annotationAttested])
			n.note(child.Digest, !n.had[child.Digest] && n.kept[of])
		}
	}
	return left, nil
}

func (n *narrowing) note(d digest.Digest, keep bool) {
	if keep {
		n.kept[d] = true
	} else {
		n.dropped[d] = true
	}
}

// Referrers returns the items of KindReferrer attached to content of the given items or to one another, in the index's
// order: signatures, attestations and SBOMs, which must be transferred with the items.
func (c *Catalog) Referrers(ctx context.Context, items []Item) ([]Item, error) {
	type referrer struct {
		item    Item
		subject digest.Digest
		taken   bool
	}
	var all []referrer
	for _, it := range c.index.Items {
		if it.Kind == KindReferrer {
			subject, err := c.subject(ctx, it)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", it, err)
			}
			all = append(all, referrer{item: it, subject: subject})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	reached := make(map[digest.Digest]bool)
	w := &walk{
		src: c.blobs, report: func(_ format.Sum, _ Item, err error) error { return err },
		visit: func(s format.Sum, _ Item) { reached[s.Digest()] = true },
	}
	if err := w.run(ctx, items); err != nil {
		return nil, err
	}
	for more := true; more; {
		more = false
		for i, one := range all {
			if !one.taken && reached[one.subject] {
				all[i].taken, more = true, true
				reached[one.item.Descriptor.Digest] = true
			}
		}
	}
	var taken []Item
	for _, one := range all {
		if one.taken {
			taken = append(taken, one.item)
		}
	}
	return taken, nil
}

// subject returns the digest that a referrer is attached to: its manifest's subject, or the digest in its tag.
func (c *Catalog) subject(ctx context.Context, it Item) (digest.Digest, error) {
	if _, tag, ok := strings.Cut(it.Ref, ":sha256-"); ok && len(tag) >= 64 { // cosign's tags: sha256-HEX.sig
		return digest.Digest("sha256:" + tag[:64]), nil
	}
	if classOf(it.Descriptor.MediaType) == classContent {
		return "", nil
	}
	data, err := c.ReadBlob(ctx, it.Descriptor.Digest, MaxManifest)
	if err != nil {
		return "", err
	}
	var doc struct {
		Subject *struct {
			Digest digest.Digest `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(data, &doc); err != nil || doc.Subject == nil {
		return "", err
	}
	return digest.Digest(strings.ToLower(string(doc.Subject.Digest))), nil
}

// Stored returns how many bytes of the bundle a blob takes: its frames or, for a small blob, its share of the common
// frame.
func (r *Reader) Stored(d digest.Digest) int64 {
	b, err := r.blobOf(d)
	switch {
	case err != nil:
		return 0
	case b.Small():
		f := r.frames[b.Frame]
		return (format.TarBlock + format.Padded(b.Size)) * int64(f.Len) / int64(f.Size)
	}
	var n int64
	for _, f := range r.frames[b.Frame:][:b.Pieces(r.dir.FrameSize)] {
		n += int64(f.Len)
	}
	return n
}

// Needs calls visit for every blob that the items need, once per item and blob, with digest and size. A missing blob is
// an error. Each manifest is read once.
func (r *Reader) Needs(ctx context.Context, items []Item, visit func(item Item, blob ocispec.Descriptor)) error {
	p := prefetch{r: r, known: make(map[document][]child)}
	if err := p.run(ctx); err != nil {
		return err
	}
	w := &walk{src: r, known: p.known, report: func(_ format.Sum, _ Item, err error) error { return err }}
	w.visit = func(s format.Sum, it Item) {
		if b, ok := r.find(s); ok {
			visit(it, ocispec.Descriptor{Digest: s.Digest(), Size: b.Size})
		}
	}
	return w.run(ctx, items)
}

// Needed returns digest and size of every blob that the items need, in the order of bundles. A missing blob is an
// error.
func (r *Reader) Needed(ctx context.Context, items []Item) ([]ocispec.Descriptor, error) {
	w := &walk{src: r, report: func(_ format.Sum, _ Item, err error) error { return err }}
	if err := w.run(ctx, items); err != nil {
		return nil, err
	}
	blobs := make([]ocispec.Descriptor, 0, len(w.nodes))
	for _, b := range w.order() {
		blobs = append(blobs, ocispec.Descriptor{Digest: b.Sum.Digest(), Size: b.Size})
	}
	return blobs, nil
}
