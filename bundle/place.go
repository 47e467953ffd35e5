package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"sync"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// Places guess where in a bundle's file the frames of a coming blob will lie, before everything in front of it has
// come. Without a cache they are written there as they arrive, and only there. A guess assumes that compressed layers
// do not compress further, so no blob ever lies behind its guessed place, but one may lie before it: then the
// bundle's writer, which goes from the start of the file to its end, copies its frames down.
type places struct {
	plan *plan
	src  *Incoming
	// read returns a small blob, and length the length of another's frames, that are there. Neither takes them from
	// the writer.
	read   func(format.Sum) ([]byte, error)
	length func(format.Sum) (int64, bool)

	file *disk.SteadyFile

	mu     sync.Mutex
	next   func() (format.Segment, bool)
	stop   func()
	last   format.Segment // of starts
	starts []start        // from the segment that the writer is at to the last one whose start can be guessed
	// no place is given before the writer has passed this frame: of the last blob that lies behind its place; or -1
	held    int
	arrived map[format.Sum]*placedFrames
	glue    []byte
	frame   []byte
}

// A start is where a segment probably begins.
type start struct {
	first int // number of the segment's first frame
	off   int64
	blob  *format.Blob // nil for other segments
	given bool         // to a writer of the blob; another one gets no place
}

// A place is where the frames of one blob go.
type place struct {
	of   *places
	blob *format.Blob
	off  int64
	room int64 // the length of the frames if none compresses
}

// placedFrames are the frames of a blob that lie in the bundle's file, not necessarily at their final place.
type placedFrames struct {
	*place
	size  int64  // of the blob
	n     int64  // length of the frames
	table []byte // of them
}

func newPlaces(ctx context.Context, file *disk.SteadyFile, plan *plan, src *Incoming) *places {
	p := &places{file: file, plan: plan, src: src, held: -1, arrived: make(map[format.Sum]*placedFrames)}
	p.read = func(d format.Sum) ([]byte, error) {
		if !src.here(d) {
			return nil, errComing
		}
		return src.Cache.ReadBlob(ctx, d.Digest(), format.SmallBlob)
	}
	p.length = func(d format.Sum) (int64, bool) {
		if !src.here(d) {
			return 0, false
		}
		e, err := src.Cache.Frames(ctx, d.Digest())
		if err != nil {
			return 0, false
		}
		n := e.Len()
		return n, e.Close() == nil
	}
	p.next, p.stop = iter.Pull(plan.layout.Segments())
	p.pull(0)
	return p
}

// pull adds the next segment, which begins at off.
func (p *places) pull(off int64) bool {
	s, ok := p.next()
	if !ok {
		return false
	}
	p.last = s
	st := start{first: s.First, off: off}
	if s.Kind == format.SegmentBlob {
		st.blob = &p.plan.layout.Blobs[s.Blob]
	}
	p.starts = append(p.starts, st)
	return true
}

// reached reports where the writer is: before a segment with that first frame.
func (p *places) reached(first int, off int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.last.First < first && p.pull(off) {
	}
	for len(p.starts) > 1 && p.starts[0].first < first {
		p.starts = p.starts[1:]
	}
	if first > p.held {
		p.held = -1
	}
	gap := p.starts[0].off - off
	if gap == 0 {
		return
	}
	for i := range p.starts {
		st := &p.starts[i]
		if st.off -= gap; st.given {
			p.held = st.first
		}
	}
}

// Place returns the place of a blob, or nil if it cannot be guessed yet.
func (p *places) Place(d format.Sum) cache.Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held >= 0 {
		return nil // it might overlap a place that was given at a wrong guess
	}
	for {
		if st := p.startOf(d); st != nil {
			if st.given {
				return nil
			}
			st.given = true
			return &place{of: p, blob: st.blob, off: st.off, room: st.blob.StoredFramesLen(p.plan.layout.FrameSize)}
		}
		n, ok := p.lastLen()
		if !ok || !p.pull(p.starts[len(p.starts)-1].off+n) {
			return nil
		}
	}
}

// startOf returns the start of a blob, or nil. Blobs that were asked for last are near the end.
func (p *places) startOf(d format.Sum) *start {
	for i := len(p.starts) - 1; i >= 0; i-- {
		if b := p.starts[i].blob; b != nil && b.Sum == d {
			return &p.starts[i]
		}
	}
	return nil
}

// maxGuessed is the most content of a glue frame that is encoded once more for its length.
const maxGuessed = format.MaxGlue / 2

// lastLen guesses the length of the last segment.
func (p *places) lastLen() (int64, bool) {
	switch s := p.last; s.Kind {
	case format.SegmentBlob:
		b := p.plan.layout.Blobs[s.Blob]
		if at := p.arrived[b.Sum]; at != nil {
			return at.n, true
		}
		if p.src.isCompressed(b.Sum) {
			return b.StoredFramesLen(p.plan.layout.FrameSize), true
		}
		return p.length(b.Sum)
	case format.SegmentGlue:
		if s.Size > maxGuessed {
			return 0, false
		}
		var err error
		if p.glue, err = p.plan.appendGlue(p.glue[:0], s, p.read); err != nil {
			return 0, false // not there yet, or no longer: the writer may be here
		}
		p.frame = p.src.Encoding().AppendFrame(p.frame[:0], p.glue)
		return int64(len(p.frame)), true
	default:
		return 0, false
	}
}

var errComing = errors.New("not here yet")

// take returns the frames of a blob that has arrived at a place, or nil.
func (p *places) take(d format.Sum) *placedFrames {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.arrived[d]
	delete(p.arrived, d)
	return at
}

// Write writes a frame at an offset from the start of the place. A full disk is a *cache.FullError.
func (p *place) Write(frame []byte, at int64) error {
	if at+int64(len(frame)) > p.room {
		return fmt.Errorf("blob %s has more bytes than announced", p.blob.Sum.Digest())
	}
	_, err := p.of.file.WriteAt(frame, p.off+at)
	if disk.IsFull(err) {
		dir := filepath.Dir(p.of.file.Name())
		return &cache.FullError{Dir: dir, What: "the bundle in " + dir, Options: "-o", Err: err}
	}
	return err
}

// Keep reports that the blob is whole: size bytes, in frames of n bytes with that table.
func (p *place) Keep(size, n int64, table []byte) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.arrived[p.blob.Sum] = &placedFrames{place: p, size: size, n: n, table: table}
}

// BlobSize implements format.Frames.
func (p *placedFrames) BlobSize() int64 { return p.size }

// Len implements format.Frames.
func (p *placedFrames) Len() int64 { return p.n }

// SeekEntries implements format.Frames.
func (p *placedFrames) SeekEntries() []byte { return p.table }

// Close implements format.Frames.
func (p *placedFrames) Close() error { return nil }

// CopyTo leaves frames that are at their place, and copies others down.
func (p *placedFrames) CopyTo(ctx context.Context, w io.Writer, buf []byte) error {
	if b, ok := w.(*bundleWriter); ok {
		switch {
		case b.off == p.off:
			return b.skip(p.n)
		case b.off > p.off: // a guess is never too low; copying the frames up would overwrite those not read yet
			return fmt.Errorf("blob %s lies in front of its place", p.blob.Sum.Digest())
		}
	}
	r := io.NewSectionReader(p.of.file, p.off, p.n)
	for rest := p.n; rest > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(rest, int64(len(buf)))
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return err
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		rest -= n
	}
	return nil
}
