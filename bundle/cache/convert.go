package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// otherDirs returns the directories of other encoders: of other levels and of other versions.
func (c *Cache) otherDirs() ([]string, error) {
	entries, err := readDir(c.root)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if dir := filepath.Join(c.root, e.Name()); isEncoderDir(e) && dir != c.dir {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// convertedFrames are the frames of a blob that another encoder compressed. CopyTo compresses the blob with this
// cache's encoder first. The new entry stays, and so does the other one.
type convertedFrames struct {
	c     *Cache
	other *entry
	entry *entry // of this cache's encoder; nil before CopyTo
}

// BlobSize implements format.Frames.
func (f *convertedFrames) BlobSize() int64 { return f.other.size }

// Len implements format.Frames.
func (f *convertedFrames) Len() int64 {
	if f.entry == nil {
		return format.Blob{Size: f.other.size}.MaxFramesLen(f.c.enc.FrameSize)
	}
	return f.entry.data
}

// SeekEntries implements format.Frames.
func (f *convertedFrames) SeekEntries() []byte { return f.entry.table }

// CopyTo implements format.Frames.
func (f *convertedFrames) CopyTo(ctx context.Context, w io.Writer, buf []byte) (err error) {
	if f.entry, err = f.c.convert(ctx, f.other); err != nil {
		return err
	}
	return f.entry.CopyTo(ctx, w, buf)
}

// Close implements format.Frames.
func (f *convertedFrames) Close() error {
	err := f.other.Close()
	if f.entry != nil {
		err = errors.Join(err, f.entry.Close())
	}
	return err
}

// Encoding returns the encoder of new entries.
func (c *Cache) Encoding() *format.Encoder { return c.enc }

// Frames returns the frames of a large blob. Those of another encoder are compressed again when they are copied.
func (c *Cache) Frames(_ context.Context, d digest.Digest) (format.Frames, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	e, err := c.entry(s)
	if err != nil {
		return nil, err
	}
	if !c.isOwn(e) {
		return &convertedFrames{c: c, other: e}, nil
	}
	return e, nil
}

// convert compresses a blob of another encoder with the cache's own and returns its entry. A digest that differs is
// damage of the other entry, unless the blob was continued after an earlier part: then it is compressed from its start.
func (c *Cache) convert(ctx context.Context, other *entry) (*entry, error) {
	resumed, err := c.recompress(ctx, other)
	if _, wrong := errors.AsType[*MismatchError](err); wrong && resumed {
		resumed, err = c.recompress(ctx, other)
	}
	if mismatch, wrong := errors.AsType[*MismatchError](err); wrong && !resumed {
		return nil, other.damaged("content has digest %s", mismatch.Got)
	}
	if err != nil {
		return nil, fmt.Errorf("compress cached blob %s: %w", other.sum.Digest(), err)
	}
	return c.entryIn(c.dir, other.sum, c.enc.FrameSize)
}

// recompress writes the blob of another encoder's entry, and reports whether it continued an earlier part.
func (c *Cache) recompress(ctx context.Context, other *entry) (resumed bool, err error) {
	r := other.content(ctx, c.dec)
	d := other.sum.Digest()
	w, offset, err := c.Begin(ctx, d.String())
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.CopyN(io.Discard, r, min(offset, other.size)); err != nil {
		return true, err
	}
	if _, err := io.Copy(w, r); err != nil {
		return offset > 0, err
	}
	_, err = w.Commit(ctx, other.size, d)
	return offset > 0, err
}

// readable reports whether a file is a whole entry, of whichever encoder.
func (d Dir) readable(f File) bool {
	e, err := openEntry(site{d.root, f.Path}, f.sum, f.frameSize)
	if err != nil {
		return false
	}
	return e.Close() == nil
}

// frameSizeOf returns the frame size of an entry, as its first frame shows it.
func (e *entry) frameSizeOf() int64 {
	if e.frames() < 2 {
		return format.MaxFrameSize
	}
	return int64(e.frame(0).Size)
}
