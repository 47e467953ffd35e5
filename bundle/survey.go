package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Contents says what one item comes to.
type Contents struct {
	Size      int64    // bytes of all its blobs, as registries transfer them
	Platforms []string // those that the bundle has of it, sorted; none where it is for no platform in particular
}

// Survey returns the Contents of every item, in the order of Index().Items. It reads manifests only.
func (r *Reader) Survey(ctx context.Context) ([]Contents, error) {
	src := &glueSource{Reader: r, kept: make(map[uint32][]byte)}
	all := make([]Contents, len(r.index.Items))
	w := &walk{src: src, nodes: make(map[sum]*node), report: func(_ sum, _ Item, err error) error { return err }}
	for i, it := range r.index.Items {
		w.visit = func(s sum, _ Item) {
			if b, ok := r.find(s); ok {
				all[i].Size += b.size
			}
		}
		if err := w.item(ctx, it, i+1); err != nil {
			return nil, err
		}
		platforms, err := src.platforms(ctx, it)
		if err != nil {
			return nil, err
		}
		all[i].Platforms = platforms
	}
	return all, nil
}

// platforms are those of the children of the item's index that are there, or else the item's own.
func (g *glueSource) platforms(ctx context.Context, it Item) ([]string, error) {
	if p := it.Descriptor.Platform; p != nil {
		return []string{PlatformString(p)}, nil
	}
	root, err := parseDigest(it.Descriptor.Digest)
	if err != nil || classOf(it.Descriptor.MediaType) != classIndex {
		return nil, err
	}
	data, err := g.read(ctx, root, maxManifest)
	if err != nil {
		return nil, err
	}
	var x ocispec.Index
	if err := json.Unmarshal(data, &x); err != nil {
		return nil, fmt.Errorf("index of %s: %w", it, err)
	}
	var platforms []string
	for _, child := range x.Manifests {
		_, here := g.Stat(child.Digest)
		if here && child.Platform != nil && !slices.Contains(it.Absent, child.Digest) {
			platforms = append(platforms, PlatformString(child.Platform))
		}
	}
	slices.Sort(platforms)
	return slices.Compact(platforms), nil
}

// keptFrames bounds the glue frames that a glueSource remembers: 4 MiB.
const keptFrames = 32

// A glueSource reads manifests and remembers the glue frames they came out of: neighbours share them, and a walk that
// decoded a frame for each manifest would decode each frame dozens of times. It is not safe for concurrent use.
type glueSource struct {
	*Reader
	kept map[uint32][]byte
}

func (g *glueSource) read(ctx context.Context, s sum, most int64) ([]byte, error) {
	b, ok := g.find(s)
	if !ok || !b.small() {
		return g.Reader.read(ctx, s, most)
	}
	if b.size > most {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", b.size, most)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	content, ok := g.kept[b.frame]
	if !ok {
		var raw []byte
		var err error
		if content, err = g.content(g.frames[b.frame], &raw, &content); err != nil {
			return nil, err
		}
		if len(g.kept) >= keptFrames {
			clear(g.kept)
		}
		g.kept[b.frame] = content
	}
	data := content[b.at:][:b.size]
	if sum(sha256.Sum256(data)) != b.sum {
		return nil, &DamageError{Blob: s.digest(), Offset: g.frames[b.frame].off, Reason: "its content has another digest"}
	}
	return data, nil
}
