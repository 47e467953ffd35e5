package bundle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// storedSlack is the overhead of a stored frame around the content of its first and last block, at most: header and
// block header before, checksum after.
const storedSlack = 9 + 3 + 4

// A Piece is the part of a blob that lies in one frame.
type Piece struct {
	At    int64 // offset in the blob
	Frame int   // frame number; pieces of several small blobs may share a frame
	Skip  int   // offset in the frame's content
	Size  int   // bytes of the piece
	Whole int   // bytes of the frame's content, as ReadFrame returns it
}

// Piece returns the piece of blob d that holds byte at. Only the piece of an empty blob is empty; it is in no frame.
func (r *Reader) Piece(d digest.Digest, at int64) (Piece, error) {
	b, err := r.blobOf(d)
	if err != nil {
		return Piece{}, err
	}
	if at < 0 || at > b.Size || at == b.Size && at > 0 {
		return Piece{}, fmt.Errorf("blob %s has %d bytes; there is no byte %d", d, b.Size, at)
	}
	if b.Size == 0 {
		return Piece{Frame: -1}, nil
	}
	if b.Small() {
		return Piece{Frame: int(b.Frame), Skip: int(b.At), Size: int(b.Size), Whole: int(r.frames[b.Frame].Size)}, nil
	}
	number := at / int64(r.dir.FrameSize)
	frame := int(b.Frame) + int(number)
	size := int(r.frames[frame].Size)
	return Piece{At: number * int64(r.dir.FrameSize), Frame: frame, Size: size, Whole: size}, nil
}

// ReadFrame reads frame number and returns its content, checked against the frame's checksum, which stops accidents but
// not attackers. The content reuses buf's memory if large enough, see FrameBuffer. raw is scratch memory, which grows
// as needed.
func (r *Reader) ReadFrame(number int, raw *[]byte, buf []byte) ([]byte, error) {
	if number < 0 || number >= len(r.frames) {
		return nil, fmt.Errorf("the bundle has no frame %d", number)
	}
	f := r.frames[number]
	if int64(f.Len) == format.StoredLen(int64(f.Size)) {
		content, err := r.readStored(f, buf)
		if !errors.Is(err, errNotStored) {
			return content, err
		}
	}
	content := buf[:0]
	return r.content(f, raw, &content)
}

// FrameBuffer returns the buffer capacity that ReadFrame needs for a frame with that many bytes of content.
func FrameBuffer(content int) int { return content + storedSlack }

var errNotStored = errors.New("the frame is not stored")

// readStored reads a stored frame directly into its final place. Each block's header overwrites the last bytes of the
// block before, which are then restored. So the kernel copies stored content only once.
func (r *Reader) readStored(f format.FrameInfo, buf []byte) ([]byte, error) {
	n := int(f.Size)
	if cap(buf) < FrameBuffer(n) {
		buf = make([]byte, FrameBuffer(n))
	}
	buf = buf[:FrameBuffer(n)]
	const start = storedSlack - 4
	content := buf[start:][:n:n]
	var header [storedSlack]byte
	off, before := f.Off, format.AppendStoredHeader(header[:0], n)
	head := len(before) + 3
	for at := 0; at < n || at == 0; at += format.StoredBlock {
		size := min(format.StoredBlock, n-at)
		last, after := at+size == n, 0
		if last {
			after = 4
		}
		place := buf[start+at-head:][:head+size+after]
		var saved [3]byte
		copy(saved[:], place)
		if err := r.readAt(place, off); err != nil {
			return nil, err
		}
		if !bytes.Equal(place[:head], format.AppendBlockHeader(before, size, last)) {
			return nil, errNotStored
		}
		if at > 0 {
			copy(place, saved[:])
		}
		off += int64(len(place))
		before, head = nil, 3
	}
	want := binary.LittleEndian.Uint32(buf[start+n:])
	if got := uint32(xxhash.Sum64(content)); got != want || got != f.Checksum {
		return nil, &DamageError{Offset: f.Off, Part: r.partAt(f.Off), Reason: "a frame is bad", Err: fmt.Errorf(
			"content checksum %08x differs from %08x in the frame and %08x in the seek table", got, want, f.Checksum)}
	}
	return content, nil
}
