package git

import (
	"crypto/sha1" //nolint:gosec // the checksum of packs
	"errors"
	"fmt"
	"hash"
	"hash/adler32"
	"hash/crc32"
	"io"
)

// A packWriter writes a pack whose zlib streams are stored.
type packWriter struct {
	w     io.Writer
	hash  hash.Hash
	crc   uint32
	at    int64
	last  int64 // offset of the last object
	count int
	total int
	index *Index
	err   error
}

func newPackWriter(w io.Writer, objects int) *packWriter {
	p := &packWriter{w: w, hash: sha1.New(), total: objects, index: &Index{}} //nolint:gosec // the checksum of packs
	p.write(packHeader(objects))
	return p
}

func (p *packWriter) write(b []byte) {
	if p.err != nil {
		return
	}
	p.hash.Write(b)
	p.crc = crc32.Update(p.crc, crc32.IEEETable, b)
	var n int
	n, p.err = p.w.Write(b)
	if p.at += int64(n); p.at > maxPack && p.err == nil {
		p.err = fmt.Errorf("unpacked, the history has more than %d bytes; name fewer refs, or a depth", int64(maxPack))
	}
}

// object writes a whole object.
func (p *packWriter) object(id ID, t Type, data []byte) error {
	return p.stream(id, t, int64(len(data)), func(w io.Writer) error { _, err := w.Write(data); return err })
}

// delta writes a delta of the object before.
func (p *packWriter) delta(id ID, delta []byte) error {
	return p.entry(id, ofsDelta, int64(len(delta)), func(w io.Writer) error { _, err := w.Write(delta); return err })
}

func (p *packWriter) stream(id ID, t Type, size int64, produce func(io.Writer) error) error {
	return p.entry(id, t, size, produce)
}

func (p *packWriter) entry(id ID, t Type, size int64, produce func(io.Writer) error) error {
	p.crc = 0
	at := p.at
	p.write(entryHeader(t, size, at-p.last))
	s := newStored(p, size)
	if err := produce(s); err != nil {
		return err
	}
	if err := s.close(); err != nil {
		return err
	}
	p.last = at
	p.count++
	p.index.ids = append(p.index.ids, id)
	p.index.offsets = append(p.index.offsets, at)
	p.index.sums = append(p.index.sums, p.crc)
	return p.err
}

// close writes the end, and returns the index.
func (p *packWriter) close() (*Index, error) {
	if p.err == nil && p.count != p.total {
		p.err = errors.New("the number of objects is not the announced one")
	}
	tail := ID(p.hash.Sum(nil))
	p.write(tail[:])
	p.index.pack = tail
	p.index.sort()
	return p.index, p.err
}

// A stored is a zlib stream without compression, of content whose size is known.
type stored struct {
	p     *packWriter
	left  int64
	block int // bytes that the current block still takes
	sum   hash.Hash32
}

const storedBlock = 1<<16 - 1

func newStored(p *packWriter, size int64) *stored {
	p.write([]byte{0x78, 0x01})
	s := &stored{p: p, left: size, sum: adler32.New()}
	if size == 0 {
		s.begin()
	}
	return s
}

// begin writes the head of a block.
func (s *stored) begin() {
	s.block = int(min(s.left, storedBlock))
	final := byte(0)
	if int64(s.block) == s.left {
		final = 1
	}
	n := uint16(s.block) //nolint:gosec // at most storedBlock
	s.p.write([]byte{final, byte(n), byte(n >> 8), byte(^n), byte(^n >> 8)})
}

// Write implements io.Writer.
func (s *stored) Write(b []byte) (int, error) {
	all := len(b)
	if int64(all) > s.left {
		return 0, errors.New("an object is longer than announced")
	}
	s.sum.Write(b)
	for len(b) > 0 {
		if s.block == 0 {
			s.begin()
		}
		n := min(len(b), s.block)
		s.p.write(b[:n])
		b, s.block, s.left = b[n:], s.block-n, s.left-int64(n)
	}
	return all, s.p.err
}

func (s *stored) close() error {
	if s.left != 0 {
		return errors.New("an object is shorter than announced")
	}
	s.p.write(s.sum.Sum(nil))
	return s.p.err
}
