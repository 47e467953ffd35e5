package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// From is a bundle to copy content from.
type From struct {
	Name string // the bundle's path, for errors
	*Reader
}

// maxGlueFrames bounds the glue frames kept in memory: 32 MiB of content.
const maxGlueFrames = 256

// idSeparator separates the encoders of a bundle whose frames were made by several.
const idSeparator = " + "

// Combined is a Source over the content of other bundles: a part of one, several in one, or both. Frames are copied
// unchanged. Every blob is also decoded and its digest checked; Write fails if one is wrong. It serves one Write at a
// time.
type Combined struct {
	from    []From
	scratch *cache.Cache // nil: only the bundles
	enc     *format.Encoder
	checks  *checks
	glue    map[glueKey][]byte
}

type glueKey struct {
	source int
	frame  uint32
}

// Combine returns a Source over bundles, at least one. A blob is taken from the first bundle that has it. The result
// has the first bundle's frame size; see Recompress for bundles with another. scratch may be nil. Its blobs can be
// written too; it must have been opened at the first bundle's Level.
func Combine(scratch *cache.Cache, from ...From) (*Combined, error) {
	if len(from) == 0 {
		return nil, errors.New("combine: no bundle given")
	}
	level := from[0].Level()
	enc, err := format.NewEncoder(level, 1)
	if err != nil {
		return nil, err
	}
	ids := []string{enc.ID}
	for _, f := range from {
		if f.dir.FrameSize == from[0].dir.FrameSize {
			ids = append(ids, strings.Split(f.dir.Encoder, idSeparator)...)
		}
	}
	enc.FrameSize, enc.ID = from[0].dir.FrameSize, joinIDs(ids)
	return &Combined{
		from: from, scratch: scratch, enc: enc, checks: newChecks(level.Jobs()),
		glue: make(map[glueKey][]byte),
	}, nil
}

// joinIDs joins the names of all encoders that made frames, including this program's own.
func joinIDs(ids []string) string {
	slices.Sort(ids)
	id := strings.Join(slices.Compact(ids), idSeparator)
	if len(id) > format.MaxEncoderID {
		return fmt.Sprintf("%d encoders", len(slices.Compact(ids)))
	}
	return id
}

// Level returns the bundle's compression level, or the nearest one that this program has.
func (d directory) Level() Level { return format.LevelOf(d.dir.Encoder, d.dir.FrameSize) }

// FrameSize returns how many bytes of a blob are in one frame.
func (d directory) FrameSize() int { return d.dir.FrameSize }

// Encoding implements Source.
func (c *Combined) Encoding() *format.Encoder { return c.enc }

// find returns the first bundle that holds a blob in frames that can be copied, else the first that holds it at all.
func (c *Combined) find(s format.Sum) (source int, b format.Blob, ok bool) {
	for i, f := range c.from {
		have, there := f.find(s)
		if !there {
			continue
		}
		if have.Small() || f.dir.FrameSize == c.enc.FrameSize {
			return i, have, true
		}
		if !ok {
			source, b, ok = i, have, true
		}
	}
	return source, b, ok
}

// Stat implements Source.
func (c *Combined) Stat(ctx context.Context, d digest.Digest) (int64, bool, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return 0, false, err
	}
	if _, b, ok := c.find(s); ok {
		return b.Size, true, nil
	}
	if c.scratch == nil {
		return 0, false, nil
	}
	return c.scratch.Stat(ctx, d)
}

// ReadBlob implements Source.
func (c *Combined) ReadBlob(ctx context.Context, d digest.Digest, most int64) ([]byte, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	source, b, ok := c.find(s)
	switch {
	case !ok && c.scratch != nil:
		return c.scratch.ReadBlob(ctx, d, most)
	case !ok:
		return nil, &MissingError{Digest: s.Digest(), Item: "the bundle to copy from"}
	case b.Size > most:
		return nil, fmt.Errorf("blob %s has %d bytes; at most %d were expected", s.Digest(), b.Size, most)
	}
	f := c.from[source]
	read := func() ([]byte, error) { return f.read(ctx, s, most) }
	if b.Small() && b.Size > 0 {
		read = func() ([]byte, error) { return c.small(source, b) }
	}
	data, err := read()
	if err != nil {
		return nil, fmt.Errorf("copy from %s: %w", f.Name, err)
	}
	return data, nil
}

// small returns a small blob, checked. It keeps the blob's neighbours in the frame, which are usually needed next.
func (c *Combined) small(source int, b format.Blob) ([]byte, error) {
	f, key := c.from[source], glueKey{source, b.Frame}
	content, ok := c.glue[key]
	if !ok {
		raw, out := f.raw.Get().(*[]byte), []byte(nil)
		defer f.raw.Put(raw)
		var err error
		if content, err = f.content(f.frames[b.Frame], raw, &out); err != nil {
			return nil, err
		}
		if len(c.glue) >= maxGlueFrames {
			clear(c.glue)
		}
		c.glue[key] = content
	}
	data := content[b.At:][:b.Size:b.Size]
	if got := format.Sum(sha256.Sum256(data)); got != b.Sum {
		return nil, &DamageError{Blob: b.Sum.Digest(), Offset: f.frames[b.Frame].Off, Reason: "content has digest " +
			string(got.Digest())}
	}
	return data, nil
}

// Frames implements Source.
func (c *Combined) Frames(ctx context.Context, d digest.Digest) (format.Frames, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	source, b, ok := c.find(s)
	if ok && c.from[source].dir.FrameSize == c.enc.FrameSize {
		return &copiedFrames{From: c.from[source], blob: b, checks: c.checks}, nil
	}
	if c.scratch == nil {
		return nil, &MissingError{Digest: s.Digest(), Item: "the bundle to copy from"}
	}
	if err := c.checkScratch(); err != nil {
		return nil, err
	}
	return c.scratch.Frames(ctx, d)
}

// checkScratch reports an error if the scratch cache's frames do not fit the result.
func (c *Combined) checkScratch() error {
	if c.scratch.Encoding().FrameSize == c.enc.FrameSize {
		return nil
	}
	return fmt.Errorf("%s has frames of %d bytes, which this program cannot make: name another bundle first, or copy from this one alone",
		c.from[0].Name, c.enc.FrameSize)
}

func (c *Combined) settle(written error) error { return c.checks.settle(written) }

// Recompress compresses blobs of items into the scratch cache if only bundles with another frame size hold them, and
// returns their size in bytes. Without a scratch cache the first such blob is an error.
func (c *Combined) Recompress(ctx context.Context, items []Item, progress func(done, total int64)) (int64, error) {
	blobs, total, err := c.odd(ctx, items)
	if err != nil || len(blobs) == 0 {
		return 0, err
	}
	if c.scratch == nil {
		return 0, errors.New("blobs must be recompressed, but there is no scratch space")
	}
	if err := c.checkScratch(); err != nil {
		return 0, err
	}
	done := int64(0)
	for _, b := range blobs {
		source, _, _ := c.find(b.Sum)
		if err := c.recompress(ctx, c.from[source], b); err != nil {
			return 0, fmt.Errorf("copy from %s: %w", c.from[source].Name, err)
		}
		done += b.Size
		if progress != nil {
			progress(done, total)
		}
	}
	return total, nil
}

// odd returns the blobs of items whose frames cannot be copied, and their total size.
func (c *Combined) odd(ctx context.Context, items []Item) (blobs []format.Blob, total int64, err error) {
	same := func(f From) bool { return f.dir.FrameSize == c.enc.FrameSize }
	if !slices.ContainsFunc(c.from, func(f From) bool { return !same(f) }) {
		return nil, 0, nil
	}
	w := &walk{src: blobsOf{c}, report: func(_ format.Sum, _ Item, err error) error { return err }}
	if err := w.run(ctx, items); err != nil {
		return nil, 0, err
	}
	for _, b := range w.order() {
		if source, have, ok := c.find(b.Sum); ok && !have.Small() && !same(c.from[source]) {
			blobs, total = append(blobs, have), total+have.Size
		}
	}
	return blobs, total, nil
}

func (c *Combined) recompress(ctx context.Context, from From, b format.Blob) (err error) {
	d := b.Sum.Digest()
	if _, ok, err := c.scratch.Stat(ctx, d); err != nil || ok {
		return err
	}
	w, offset, err := c.scratch.Begin(ctx, d.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if offset > 0 {
		if err := w.Reset(); err != nil {
			return err
		}
	}
	rc := from.stream(ctx, b, 0, true)
	_, err = io.Copy(w, rc)
	if err := errors.Join(err, rc.Close()); err != nil {
		return err
	}
	_, err = w.Commit(ctx, b.Size, d)
	return err
}
