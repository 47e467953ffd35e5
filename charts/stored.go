package charts

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// storedBlock is the largest content of a stored block (RFC 1951, 3.2.4).
const storedBlock = 65535

// A stored writes a gzip stream of stored blocks (RFC 1952). compress/gzip does so too, but its bytes change between
// releases of Go (1.27 ends a stream differently), and with them the digests in locks.
type stored struct {
	w     io.Writer
	block []byte // the header of the next block, then its content
	crc   hash.Hash32
	size  uint32
	begun bool
}

const storedHeader = 5 // bytes before a block's content: the kind, its length, and the length inverted

func newStored(w io.Writer) *stored {
	return &stored{w: w, block: make([]byte, storedHeader, storedHeader+storedBlock), crc: crc32.NewIEEE()}
}

// Write implements io.Writer.
func (s *stored) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), cap(s.block)-len(s.block))
		s.block = append(s.block, p[:n]...)
		s.crc.Write(p[:n])
		s.size += uint32(n) // modulo 2^32, as the format has it
		written, p = written+n, p[n:]
		if len(s.block) == cap(s.block) {
			if err := s.flush(0); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// Close writes the last block, which is empty, and the trailer.
func (s *stored) Close() error {
	if len(s.block) > storedHeader {
		if err := s.flush(0); err != nil {
			return err
		}
	}
	s.block = s.block[:storedHeader]
	if err := s.flush(1); err != nil {
		return err
	}
	trailer := binary.LittleEndian.AppendUint32(nil, s.crc.Sum32())
	return s.write(binary.LittleEndian.AppendUint32(trailer, s.size))
}

// flush writes a block; last is 1 for the last one.
func (s *stored) flush(last byte) error {
	if !s.begun {
		s.begun = true
		// deflate, no flags, no time, no hint about the level, no known operating system
		if err := s.write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}); err != nil {
			return err
		}
	}
	n := uint16(len(s.block) - storedHeader)
	s.block[0] = last
	binary.LittleEndian.PutUint16(s.block[1:], n)
	binary.LittleEndian.PutUint16(s.block[3:], ^n)
	err := s.write(s.block)
	s.block = s.block[:storedHeader]
	return err
}

func (s *stored) write(p []byte) error {
	if _, err := s.w.Write(p); err != nil {
		return fmt.Errorf("write gzip: %w", err)
	}
	return nil
}
