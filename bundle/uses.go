package bundle

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// Uses returns the digests of the given roots and of everything below them, as far as the cache in dir holds the
// manifests at any level. GC keeps the pins of a lock this way.
func Uses(ctx context.Context, dir cache.Dir, roots []digest.Digest) (map[digest.Digest]bool, error) {
	copies, err := dir.Copies()
	if err != nil {
		return nil, err
	}
	used := make(map[digest.Digest]bool)
	var todo []child
	for _, root := range roots {
		s, err := format.ParseDigest(root)
		if err != nil {
			return nil, err
		}
		todo = append(todo, child{sum: s}) // the class does not matter here: read detects it
	}
	for len(todo) > 0 && ctx.Err() == nil {
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if name := c.sum.Digest(); !used[name] {
			used[name] = true
			if c.class <= classManifest {
				todo = append(todo, cachedChildren(ctx, copies, c.sum)...)
			}
		}
	}
	return used, ctx.Err()
}

// cachedChildren returns the references of a manifest or index; none if the cache lacks the blob or the blob is
// something else.
func cachedChildren(ctx context.Context, copies cache.Copies, s format.Sum) []child {
	for data := range copies.Of(ctx, s, MaxManifest) {
		if children, err := parseChildren(data, classIndex); err == nil && len(children) > 0 {
			return children
		}
		if children, err := parseChildren(data, classManifest); err == nil {
			return children
		}
	}
	return nil
}
