package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

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

// convertedFrames are the frames of a blob that another encoder compressed. copyTo compresses the blob with this cache's
// encoder first. The new entry stays, and so does the other one.
type convertedFrames struct {
	c     *Cache
	other *cacheEntry
	entry *cacheEntry // of this cache's encoder; nil before copyTo
}

func (f *convertedFrames) blobSize() int64 { return f.other.size }

func (f *convertedFrames) length() int64 {
	if f.entry == nil {
		return framesMost(f.other.size, f.c.enc.FrameSize)
	}
	return f.entry.data
}

func (f *convertedFrames) seekEntries() []byte { return f.entry.table }

func (f *convertedFrames) copyTo(ctx context.Context, w io.Writer, buf []byte) (err error) {
	if f.entry, err = f.c.convert(ctx, f.other); err != nil {
		return err
	}
	return f.entry.copyTo(ctx, w, buf)
}

func (f *convertedFrames) close() error {
	err := f.other.close()
	if f.entry != nil {
		err = errors.Join(err, f.entry.close())
	}
	return err
}

// convert compresses a blob of another encoder with the cache's own and returns its entry. A digest that differs is
// damage of the other entry, unless the blob was continued after an earlier part: then it is compressed from its start.
func (c *Cache) convert(ctx context.Context, other *cacheEntry) (*cacheEntry, error) {
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
func (c *Cache) recompress(ctx context.Context, other *cacheEntry) (resumed bool, err error) {
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
func (d CacheDir) readable(f CacheFile) bool {
	e, err := openEntry(cacheSite{d.root, f.Path}, f.sum, f.frameSize)
	if err != nil {
		return false
	}
	return e.close() == nil
}

// frameSizeOf returns the frame size of an entry, as its first frame shows it.
func (e *cacheEntry) frameSizeOf() int64 {
	if e.frames() < 2 {
		return format.MaxFrameSize
	}
	return int64(e.frame(0).Size)
}
