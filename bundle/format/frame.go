package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// The parts of the zstd frame format (RFC 8878) that bundles use.
const (
	frameMagic    = 0xFD2FB528
	StoredBlock   = 128 << 10 // the largest block a frame may have
	minFrame      = 4 + 1 + 1 + 3 + 4
	flagSingle    = 1 << 5
	flagChecksum  = 1 << 2
	flagForbidden = 1<<4 | 1<<3 | 3 // unused, reserved and dictionary bits
)

// MaxFrameLen returns the maximal length of a frame with n bytes of content. Block headers, frame header and checksum
// are far below 1/1024 of any content worth counting.
func MaxFrameLen(n int64) int64 { return n + n/1024 + 64 }

// StoredLen returns the length of the frame that AppendStored makes of n bytes. No other frame of Encoder.AppendFrame
// is as long.
func StoredLen(n int64) int64 {
	var header [minFrame]byte
	return int64(len(AppendStoredHeader(header[:0], int(n)))) + max(1, (n+StoredBlock-1)/StoredBlock)*3 + n + 4
}

// AppendStored appends a frame that holds content uncompressed, in raw blocks.
func AppendStored(dst, content []byte) []byte {
	dst = AppendStoredHeader(dst, len(content))
	for rest := content; ; {
		size := min(len(rest), StoredBlock)
		dst = AppendBlockHeader(dst, size, size == len(rest))
		dst = append(dst, rest[:size]...)
		if rest = rest[size:]; len(rest) == 0 {
			break
		}
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(xxhash.Sum64(content)))
}

// AppendStoredHeader appends the header of a stored frame of n bytes.
func AppendStoredHeader(dst []byte, n int) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, frameMagic)
	switch {
	case n < 256:
		return append(dst, flagSingle|flagChecksum, byte(n))
	case n < 65536+256:
		return binary.LittleEndian.AppendUint16(append(dst, 1<<6|flagSingle|flagChecksum), uint16(n-256))
	default:
		return binary.LittleEndian.AppendUint32(append(dst, 2<<6|flagSingle|flagChecksum), uint32(n))
	}
}

// AppendBlockHeader appends the header of a raw block.
func AppendBlockHeader(dst []byte, size int, last bool) []byte {
	header := uint32(size) << 3
	if last {
		header |= 1
	}
	return append(dst, byte(header), byte(header>>8), byte(header>>16))
}

// SplitFrame finds the end of the first frame in b from block headers alone, and its content size. It accepts only
// frames that the format allows: single segment, content size, checksum, no dictionary.
func SplitFrame(b []byte) (length int, content int64, err error) {
	if len(b) < minFrame {
		return 0, 0, errors.New("truncated frame")
	}
	content, at, err := frameHeader(b)
	if err != nil {
		return 0, 0, err
	}
	for last := false; !last; {
		if len(b)-at < 3 {
			return 0, 0, errors.New("truncated frame")
		}
		var size int
		size, last = blockHeader(b[at:])
		at += 3 + size
	}
	if at += 4; at > len(b) {
		return 0, 0, errors.New("truncated frame")
	}
	return at, content, nil
}

// frameHeader reads the header of a frame from at least its first 9 bytes. It returns the lengths of the frame's
// content and of the header.
func frameHeader(b []byte) (content int64, length int, err error) {
	if binary.LittleEndian.Uint32(b) != frameMagic {
		return 0, 0, errors.New("not the start of a zstd frame")
	}
	flags := b[4]
	if flags&flagSingle == 0 || flags&flagChecksum == 0 || flags&flagForbidden != 0 {
		return 0, 0, fmt.Errorf("frame header %#02x is not allowed in bundles", flags)
	}
	switch flags >> 6 {
	case 0:
		return int64(b[5]), 6, nil
	case 1:
		return int64(binary.LittleEndian.Uint16(b[5:])) + 256, 7, nil
	case 2:
		return int64(binary.LittleEndian.Uint32(b[5:])), 9, nil
	default:
		return 0, 0, errors.New("frame content exceeds the largest size allowed in bundles")
	}
}

// blockHeader reads the 3 bytes before a block: its length in the file, and whether it is the frame's last.
func blockHeader(b []byte) (size int, last bool) {
	header := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
	size = header >> 3
	if header>>1&3 == 1 { // one byte, repeated
		size = 1
	}
	return size, header&1 != 0
}

// SkipFrame finds the end of the frame at off without reading its blocks.
func SkipFrame(r io.ReaderAt, off int64) (length, content int64, err error) {
	var b [minFrame]byte
	if _, err := r.ReadAt(b[:], off); err != nil {
		return 0, 0, err
	}
	content, at, err := frameHeader(b[:])
	if err != nil {
		return 0, 0, err
	}
	length = int64(at)
	for last := false; !last; {
		if _, err := r.ReadAt(b[:3], off+length); err != nil {
			return 0, 0, err
		}
		var size int
		size, last = blockHeader(b[:3])
		length += 3 + int64(size)
	}
	return length + 4, content, nil
}

// NewDecoder returns a decoder for DecodeFrame. It is safe for concurrent use and needs no Close.
func NewDecoder(jobs int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(jobs), zstd.WithDecoderMaxWindow(MaxIndexSize),
		zstd.WithDecoderMaxMemory(MaxIndexSize), zstd.WithDecodeAllCapLimit(true))
}

// DecodeFrame decodes b, which must be exactly one frame with n bytes of content. It reuses buf's memory if large
// enough.
func DecodeFrame(dec *zstd.Decoder, b, buf []byte, n int64) ([]byte, error) {
	length, content, err := SplitFrame(b)
	if err != nil {
		return nil, err
	}
	if length != len(b) || content != n {
		return nil, fmt.Errorf("the frame has %d bytes for %d of content; the seek table says %d for %d", length,
			content, len(b), n)
	}
	if int64(cap(buf)) < n {
		buf = make([]byte, 0, n)
	}
	out, err := dec.DecodeAll(b, buf[:0])
	if err != nil {
		return nil, fmt.Errorf("the frame does not decode: %w", err)
	}
	if int64(len(out)) != n {
		return nil, fmt.Errorf("the frame decodes to %d bytes instead of %d", len(out), n)
	}
	return out, nil
}
