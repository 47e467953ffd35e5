package bundle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A Spool is temporary space for the bytes of a composed bundle that exist nowhere else.
type Spool interface {
	io.Writer // appends
	io.ReaderAt
	io.Closer
}

// Compose opens the bundle of x that Write would write, without writing it. The frames of large blobs stay in src, in
// other bundles or in a cache, and are read there: src must stay open and unchanged. Everything else goes to spool:
// small blobs, index.json, the directory. Content is checked where it is read, as in any bundle. Close of the Reader
// closes spool.
func Compose(ctx context.Context, src Source, x Index, spool Spool) (*Reader, error) {
	p, err := newPlan(ctx, src, x)
	if err != nil {
		return nil, err
	}
	c := &composed{spool: spool}
	w := &bundleWriter{plan: p, src: src, w: bufio.NewWriterSize(c, 128<<10), buf: make([]byte, 1<<20)}
	w.refer = func(at *io.SectionReader) error {
		if err := w.w.Flush(); err != nil {
			return err
		}
		c.add(at, at.Size())
		return nil
	}
	for s := range p.layout.Segments() {
		if err := w.segment(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := w.finish(); err != nil {
		return nil, err
	}
	r, err := NewReader(c, c.size)
	if err != nil {
		return nil, err
	}
	r.close = spool.Close
	return r, nil
}

// A composed is a file whose ranges lie in several others.
type composed struct {
	spool   Spool
	spooled int64
	ranges  []composedRange
	size    int64
}

type composedRange struct {
	at   int64 // in the composed file
	from io.ReaderAt
	off  int64 // in from
	size int64
}

// add appends a range of another file.
func (c *composed) add(from io.ReaderAt, size int64) {
	c.ranges = append(c.ranges, composedRange{at: c.size, from: from, size: size})
	c.size += size
}

// Write appends bytes to the spool, and thereby to the composed file.
func (c *composed) Write(b []byte) (int, error) {
	n, err := c.spool.Write(b)
	if last := len(c.ranges) - 1; last >= 0 && c.ranges[last].from == io.ReaderAt(c.spool) {
		c.ranges[last].size += int64(n)
		c.size += int64(n)
	} else {
		c.add(c.spool, int64(n))
		c.ranges[last+1].off = c.spooled
	}
	c.spooled += int64(n)
	return n, err
}

// ReadAt reads across the ranges.
func (c *composed) ReadAt(b []byte, off int64) (total int, err error) {
	i, ok := slices.BinarySearchFunc(c.ranges, off, func(r composedRange, off int64) int {
		switch {
		case r.at+r.size <= off:
			return -1
		case r.at > off:
			return 1
		}
		return 0
	})
	for ; ok && i < len(c.ranges) && total < len(b); i++ {
		r := c.ranges[i]
		skip := off + int64(total) - r.at
		want := b[total:min(int64(len(b)), int64(total)+r.size-skip)]
		n, err := r.from.ReadAt(want, r.off+skip)
		total += n
		if n == len(want) {
			continue
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("a file that the bundle is composed of became shorter: %w", io.ErrUnexpectedEOF)
		}
		return total, err
	}
	if total < len(b) {
		return total, io.EOF
	}
	return total, nil
}

// placed are frames that lie in a file where they can be read at any time.
type placed interface{ Section() *io.SectionReader }

// Section returns the frames in the bundle to copy from.
func (f *copiedFrames) Section() *io.SectionReader {
	return io.NewSectionReader(f.r, f.frames[f.blob.Frame].Off, f.Len())
}
