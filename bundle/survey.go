package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// Contents are the size, platforms and content of one item.
type Contents struct {
	Size      int64    // bytes of all its blobs, as transferred by registries
	Platforms []string // the item's platforms in the bundle, sorted; none for an item without a platform
	// File is the digest of the bytes of a file, chart or document: what sha256sum prints of them. "" for other
	// items, and for a file in several layers.
	File digest.Digest
}

// Survey returns the Contents of every item, in the order of Index().Items. It reads only manifests, each once.
func (r *Reader) Survey(ctx context.Context) ([]Contents, error) {
	p := prefetch{r: r, known: make(map[document][]child)}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	return r.survey(ctx, p.known)
}

// survey is Survey with the documents already read.
func (c *Catalog) survey(ctx context.Context, known map[document][]child) ([]Contents, error) {
	all := make([]Contents, len(c.index.Items))
	w := &walk{
		src: c.blobs, known: known, nodes: make(map[format.Sum]*node),
		report: func(_ format.Sum, _ Item, err error) error { return err },
	}
	for i, it := range c.index.Items {
		w.visit = func(s format.Sum, _ Item) {
			if n := w.nodes[s]; !n.missing {
				all[i].Size += n.size
			}
		}
		if err := w.item(ctx, it, i+1); err != nil {
			return nil, err
		}
		var err error
		if all[i].Platforms, err = w.platforms(it); err != nil {
			return nil, err
		}
		all[i].File = w.file(it)
	}
	return all, nil
}

// file returns the digest of the only layer of an item's manifest, or "".
func (w *walk) file(it Item) digest.Digest {
	root, err := format.ParseDigest(it.Descriptor.Digest)
	if it.Kind == KindImage || it.Kind == KindReferrer || err != nil ||
		classOf(it.Descriptor.MediaType) != classManifest {
		return ""
	}
	n := w.nodes[root]
	if n == nil {
		return ""
	}
	var layers []child
	for _, c := range n.children {
		if c.class == classContent {
			layers = append(layers, c)
		}
	}
	if len(layers) != 1 {
		return ""
	}
	return layers[0].sum.Digest()
}

// platforms returns the platforms of the present, selected children of the item's index, else the item's own.
func (w *walk) platforms(it Item) ([]string, error) {
	if p := it.Descriptor.Platform; p != nil {
		return []string{PlatformString(p)}, nil
	}
	root, err := format.ParseDigest(it.Descriptor.Digest)
	if err != nil || classOf(it.Descriptor.MediaType) != classIndex {
		return nil, err
	}
	absent, err := absentSet(it)
	if err != nil {
		return nil, err
	}
	var platforms []string
	seen := map[format.Sum]bool{} // the walk has bounded the depth of nested indexes
	for open := []format.Sum{root}; len(open) > 0; open = open[1:] {
		if seen[open[0]] {
			continue
		}
		seen[open[0]] = true
		for _, c := range w.nodes[open[0]].children {
			_, left := absent[c.sum]
			switch {
			case left, c.platform == attestationPlatform:
			case c.platform != "":
				platforms = append(platforms, c.platform)
			case c.class == classIndex:
				open = append(open, c.sum)
			}
		}
	}
	slices.Sort(platforms)
	return slices.Compact(platforms), nil
}

// A prefetch reads the indexes and manifests below the items, level by level, those of a level in parallel. Missing or
// wrong documents are left out: the later walk reports them.
type prefetch struct {
	r          *Reader
	known      map[document][]child
	references atomic.Int64 // in known; bounds its memory
}

func (p *prefetch) run(ctx context.Context) error {
	wave := make(map[document]bool)
	for _, it := range p.r.index.Items {
		root, err := format.ParseDigest(it.Descriptor.Digest)
		if c := classOf(it.Descriptor.MediaType); err == nil && c <= classManifest {
			wave[document{root, c}] = true
		}
	}
	for depth := 0; len(wave) > 0 && depth <= maxDepth; depth++ {
		found, err := p.read(ctx, p.place(wave))
		if err != nil {
			return err
		}
		clear(wave)
		for _, f := range found {
			if f.children == nil {
				continue
			}
			p.known[f.document] = f.children
			for _, c := range f.children {
				if d := (document{c.sum, c.class}); c.class <= classManifest && p.known[d] == nil {
					wave[d] = true
				}
			}
		}
	}
	return nil
}

// A foundDocument is a document, its position and its children, nil until it was read.
type foundDocument struct {
	document
	blob     format.Blob
	children []child
}

// place finds documents in the bundle and returns them in file order, in which neighbours share a frame.
func (p *prefetch) place(wave map[document]bool) []foundDocument {
	found := make([]foundDocument, 0, len(wave))
	for d := range wave {
		if b, ok := p.r.find(d.sum); ok {
			found = append(found, foundDocument{document: d, blob: b})
		}
	}
	slices.SortFunc(found, func(a, b foundDocument) int {
		return cmp.Or(cmp.Compare(a.blob.Frame, b.blob.Frame), cmp.Compare(a.blob.At, b.blob.At))
	})
	return found
}

// read fills in the children. Only the end of ctx is an error.
func (p *prefetch) read(ctx context.Context, found []foundDocument) ([]foundDocument, error) {
	group, groupCtx := errgroup.WithContext(ctx)
	each := len(found)/runtime.GOMAXPROCS(0) + 1
	for part := range slices.Chunk(found, each) {
		group.Go(func() error {
			f := frameReader{Reader: p.r}
			for i := range part {
				if groupCtx.Err() != nil || p.references.Load() > maxChildren {
					break
				}
				data, err := f.read(groupCtx, part[i].blob)
				if err == nil {
					part[i].children, err = parseChildren(data, part[i].class)
				}
				if err == nil {
					p.references.Add(int64(len(part[i].children)))
				}
			}
			return groupCtx.Err()
		})
	}
	return found, group.Wait()
}

// A frameReader reads small blobs and keeps the last frame.
type frameReader struct {
	*Reader
	frame   uint32 // the frame of content
	content []byte // in the memory of out; nil for none
	raw     []byte
	out     []byte
}

// read returns a checked blob that may be an index or manifest; it is valid until the next call.
func (f *frameReader) read(ctx context.Context, b format.Blob) ([]byte, error) {
	if !b.Small() {
		return f.Reader.read(ctx, b.Sum, MaxManifest)
	}
	if f.frame != b.Frame || f.content == nil {
		var err error
		f.frame = b.Frame
		if f.content, err = f.Reader.content(f.frames[b.Frame], &f.raw, &f.out); err != nil {
			return nil, err
		}
	}
	data := f.content[b.At:][:b.Size]
	if format.Sum(sha256.Sum256(data)) != b.Sum {
		return nil, &DamageError{
			Blob: b.Sum.Digest(), Offset: f.frames[b.Frame].Off,
			Reason: "content has another digest",
		}
	}
	return data, nil
}
