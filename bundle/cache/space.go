package cache

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// MostInBundle returns the most bytes that a blob of this size adds to a bundle: the size when nothing compresses.
func (c *Cache) MostInBundle(size int64) int64 {
	b := format.Blob{Size: size}
	const entry = 3*format.TarBlock + format.TarBlock + 256 // header, padding, and its line in the directory
	return entry + b.MaxFramesLen(c.enc.FrameSize) + format.SeekEntry*int64(b.Pieces(c.enc.FrameSize))
}

// MostInCache returns the most bytes of disk that a blob of this size takes in the cache.
func (c *Cache) MostInCache(size int64) int64 {
	b := format.Blob{Size: size}
	const block = 4 << 10
	n := b.MaxFramesLen(c.enc.FrameSize) + format.SeekEntry*int64(b.Pieces(c.enc.FrameSize)) + entryTrailer
	return (n + block - 1) / block * block
}

// InBundle returns the most bytes that a cached blob adds to a bundle, and to the cache if it must be compressed again.
func (c *Cache) InBundle(d digest.Digest) (inBundle, inCache int64, err error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return 0, 0, err
	}
	e, err := c.entry(s)
	if err != nil {
		return 0, 0, err
	}
	if !c.isOwn(e) {
		return c.MostInBundle(e.size), c.MostInCache(e.size), e.Close()
	}
	return c.MostInBundle(e.size) - format.Blob{Size: e.size}.MaxFramesLen(c.enc.FrameSize) + e.data, 0, e.Close()
}

// Partial returns the offset at which a Begin with this key would continue, as far as visible without checking the
// bytes; 0 if there is no part.
func (c *Cache) Partial(_ context.Context, key string) (int64, error) {
	n, err := partContent(filepath.Join(c.parts, partName(key)))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}
