package format

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	aheadBlock  = 256 << 10 // bytes
	aheadBlocks = 8
	// maxFrameHeader is magic, flags and the largest content size that bundles have.
	maxFrameHeader = 4 + 1 + 4
)

// A readAhead reads from a pipe while earlier bytes are processed, and stops waiting when ctx ends. A read from a
// terminal or a pipe cannot be interrupted, so its goroutine may outlive the reader until the read returns.
type readAhead struct {
	ctx    context.Context //nolint:containedctx // io.Reader has no other place for it
	blocks chan aheadRead
	free   chan []byte
	block  []byte // the block being consumed
	rest   []byte
	err    error
}

type aheadRead struct {
	b   []byte
	err error
}

func newReadAhead(ctx context.Context, src io.Reader) *readAhead {
	r := &readAhead{ctx: ctx, blocks: make(chan aheadRead, aheadBlocks), free: make(chan []byte, aheadBlocks)}
	for range aheadBlocks {
		r.free <- make([]byte, aheadBlock)
	}
	go r.fill(src)
	return r
}

func (r *readAhead) fill(src io.Reader) {
	for {
		var b []byte
		select {
		case b = <-r.free:
		case <-r.ctx.Done():
			return
		}
		n, err := src.Read(b)
		r.blocks <- aheadRead{b[:n], err} // never blocks: the channel has room for all blocks
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (r *readAhead) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.block != nil {
			r.free <- r.block[:cap(r.block)]
			r.block = nil
		}
		if r.err != nil {
			return 0, r.err
		}
		select {
		case got := <-r.blocks:
			r.block, r.rest, r.err = got.b, got.b, got.err
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// A FrameScanner finds the frames of a streamed bundle from their own headers.
type FrameScanner struct {
	r      *bufio.Reader
	Off    int64       // offset of the next frame
	Frames []FrameInfo // the frames read so far
}

// NewFrameScanner returns a scanner that reads ahead of its caller. It stops waiting for src when ctx ends.
func NewFrameScanner(ctx context.Context, src io.Reader) *FrameScanner {
	return &FrameScanner{r: bufio.NewReaderSize(newReadAhead(ctx, src), 64<<10)}
}

// fail turns a read error at the end of the stream into a damage error.
func (s *FrameScanner) fail(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Damage(s.Off, "unexpected end of the stream")
	}
	return fmt.Errorf("read the bundle after byte %d: %w", s.Off, err)
}

// size returns the length of the next frame's content and of its header, without consuming them.
func (s *FrameScanner) size() (content int64, header int, err error) {
	b, err := s.r.Peek(maxFrameHeader)
	if len(b) < maxFrameHeader {
		return 0, 0, s.fail(err)
	}
	if content, header, err = frameHeader(b); err != nil {
		return 0, 0, &DamageError{Offset: s.Off, Reason: fmt.Sprintf("frame %d", len(s.Frames)), Err: err}
	}
	return content, header, nil
}

// Next reads the next frame, which must have 1 to most bytes of content, and reuses buf's memory if large enough. For a
// frame larger than a piece of a blob, memory grows only with the bytes received.
func (s *FrameScanner) Next(buf []byte, most int64) (raw []byte, f FrameInfo, err error) {
	content, header, err := s.size()
	if err != nil {
		return buf, f, err
	}
	if len(s.Frames) == MaxFrames {
		return buf, f, Damage(s.Off, "more than %d frames", MaxFrames)
	}
	if content < 1 || content > most {
		return buf, f, Damage(s.Off, "frame %d holds %d bytes instead of at most %d", len(s.Frames), content, most)
	}
	if n := MaxFrameLen(content); int64(cap(buf)) < n && content <= MaxFrameSize {
		buf = make([]byte, 0, n)
	}
	raw, err = s.take(buf[:0], header)
	for last := false; err == nil && !last; {
		if raw, err = s.take(raw, 3); err != nil {
			break
		}
		var size int
		size, last = blockHeader(raw[len(raw)-3:])
		if int64(len(raw)+size) > MaxFrameLen(content) {
			return raw, f, Damage(s.Off, "frame %d is longer than allowed for %d bytes of content", len(s.Frames),
				content)
		}
		raw, err = s.take(raw, size)
	}
	if err == nil {
		raw, err = s.take(raw, 4)
	}
	if err != nil {
		return raw, f, s.fail(err)
	}
	f = FrameInfo{
		Off: s.Off, Len: uint32(len(raw)), Size: uint32(content),
		Checksum: binary.LittleEndian.Uint32(raw[len(raw)-4:]),
	}
	s.Off += int64(len(raw))
	s.Frames = append(s.Frames, f)
	return raw, f, nil
}

// take appends n bytes of the stream to b.
func (s *FrameScanner) take(b []byte, n int) ([]byte, error) {
	at := len(b)
	if cap(b)-at < n {
		b = append(make([]byte, 0, 2*(at+n)), b...)
	}
	b = b[:at+n]
	_, err := io.ReadFull(s.r, b[at:])
	return b, err
}

// End reads the seek table, which must match the preceding frames, and the end of the stream.
func (s *FrameScanner) End() error {
	entries := make([]byte, 0, len(s.Frames)*SeekEntry)
	for _, f := range s.Frames {
		entries = AppendEntry(entries, f)
	}
	want := AppendSeekTable(nil, entries)
	have, err := s.take(nil, len(want))
	if err != nil {
		return s.fail(err)
	}
	if string(have) != string(want) {
		return Damage(s.Off, "the seek table does not match the frames")
	}
	s.Off += int64(len(want))
	switch _, err := s.r.ReadByte(); {
	case err == nil:
		return Damage(s.Off, "data after the end of the bundle")
	case !errors.Is(err, io.EOF):
		return s.fail(err)
	}
	return nil
}
