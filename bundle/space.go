package bundle

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
	const entry = 3*format.TarBlock + format.TarBlock + 256 // header, padding, and its line in the directory
	return entry + framesMost(size, c.enc.FrameSize) + format.SeekEntry*pieces(size, c.enc.FrameSize)
}

// MostInCache returns the most bytes of disk that a blob of this size takes in the cache.
func (c *Cache) MostInCache(size int64) int64 {
	const block = 4 << 10
	n := framesMost(size, c.enc.FrameSize) + format.SeekEntry*pieces(size, c.enc.FrameSize) + entryTrailer
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
		return c.MostInBundle(e.size), c.MostInCache(e.size), e.close()
	}
	return c.MostInBundle(e.size) - framesMost(e.size, c.enc.FrameSize) + e.data, 0, e.close()
}

// pieces returns the number of frames of a blob; a small one has none of its own.
func pieces(size int64, frameSize int) int64 { return int64(format.Blob{Size: size}.Pieces(frameSize)) }

// storedFrames returns the length of a blob's frames if none compresses. It is the most that an encoder makes.
func storedFrames(size int64, frameSize int) int64 {
	whole, rest := size/int64(frameSize), size%int64(frameSize)
	n := whole * format.StoredLen(int64(frameSize))
	if rest > 0 {
		n += format.StoredLen(rest)
	}
	return n
}

// framesMost returns the maximal total size of a blob's frames.
func framesMost(size int64, frameSize int) int64 {
	return format.MaxFrameLen(size) + 64*pieces(size, frameSize)
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
