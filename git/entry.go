package git

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	packMagic  = "PACK"
	packHead   = 12
	packTail   = 20
	maxObject  = 4 << 30   // bytes of an object
	maxDelta   = 100 << 20 // bytes of an object that is a delta or has one, which is held in memory
	maxChain   = 4095      // deltas above an object; Git itself writes no longer chains
	maxObjects = 8 << 20   // of a pack: about 110 bytes of memory each while it is made
	maxPack    = 64 << 30
	maxPatched = 16 * maxPack // bytes that a pack's deltas take while it is received, and again while it is written
)

// An entry is the header of an object in a pack.
type entry struct {
	at   int64 // of the header
	data int64 // of the zlib stream
	kind Type
	size int64 // of the content, or of a delta's instructions
	base int64 // offset of an ofsDelta's base
	ref  ID    // of a refDelta's base
}

// byteReader is what entries are parsed from.
type byteReader interface {
	io.Reader
	io.ByteReader
}

// readEntry parses the header of the entry at an offset, from which r reads.
func readEntry(r byteReader, at int64) (e entry, err error) {
	e.at = at
	n := int64(0)
	next := func() (byte, error) {
		n++
		b, err := r.ReadByte()
		if err == io.EOF { //nolint:errorlint // readers return it as it is
			err = io.ErrUnexpectedEOF
		}
		return b, err
	}
	b, err := next()
	if err != nil {
		return e, err
	}
	e.kind, e.size = Type(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = next(); err != nil {
			return e, err
		}
		if shift > 40 {
			return e, errors.New("an object with a size of more than 47 bits")
		}
		e.size |= int64(b&0x7f) << shift
	}
	if e.size > maxObject {
		return e, fmt.Errorf("an object has %d bytes, and at most %d are carried", e.size, int64(maxObject))
	}
	switch e.kind {
	case Commit, Tree, Blob, Tag:
	case ofsDelta:
		var back int64
		for i := 0; ; i++ {
			if b, err = next(); err != nil {
				return e, err
			}
			if i > 0 {
				back++
			}
			if back = back<<7 | int64(b&0x7f); b&0x80 == 0 {
				break
			}
			if i > 6 {
				return e, errors.New("a delta whose base is too far away")
			}
		}
		if e.base = at - back; back <= 0 || e.base < packHead {
			return e, errors.New("a delta whose base is outside of the pack")
		}
	case refDelta:
		if _, err = io.ReadFull(r, e.ref[:]); err != nil {
			return e, err
		}
		n += int64(len(e.ref))
	default:
		return e, fmt.Errorf("an object of unknown %s", e.kind)
	}
	e.data = at + n
	return e, nil
}

// entryHeader returns the header of an entry. back is the distance to an ofsDelta's base.
func entryHeader(t Type, size, back int64) []byte {
	var b []byte
	c := byte(t)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, c|0x80)
		c = byte(size & 0x7f)
	}
	b = append(b, c)
	if t != ofsDelta {
		return b
	}
	var digits [10]byte
	i := len(digits) - 1
	digits[i] = byte(back & 0x7f)
	for back >>= 7; back > 0; back >>= 7 {
		back--
		i--
		digits[i] = 0x80 | byte(back&0x7f)
	}
	return append(b, digits[i:]...)
}

func packHeader(objects int) []byte {
	b := append([]byte(packMagic), 0, 0, 0, 2)
	return binary.BigEndian.AppendUint32(b, uint32(objects)) //nolint:gosec // at most maxObjects
}

// parsePackHeader returns the number of objects.
func parsePackHeader(b []byte) (int, error) {
	if len(b) < packHead || string(b[:4]) != packMagic {
		return 0, errors.New("the answer is not a pack")
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != 2 && v != 3 {
		return 0, fmt.Errorf("the pack has the unknown version %d", v)
	}
	n := binary.BigEndian.Uint32(b[8:])
	if n > maxObjects {
		return 0, fmt.Errorf("the pack has %d objects, and at most %d are carried; name fewer refs, or a depth", n,
			maxObjects)
	}
	return int(n), nil
}

// An inflater is a zlib reader that is used again.
type inflater struct {
	src *bufio.Reader
	z   io.ReadCloser
}

// open starts a stream. The reader must not be used after close.
func (f *inflater) open(r io.Reader) error {
	f.src.Reset(r)
	if f.z != nil {
		return f.z.(zlib.Resetter).Reset(f.src, nil)
	}
	z, err := zlib.NewReader(f.src)
	f.z = z
	return err
}

// patch applies the instructions of a delta.
func patch(base, delta []byte, limit int64) ([]byte, error) {
	bad := errors.New("a delta that does not fit its base")
	from, n := binary.Uvarint(delta)
	if n <= 0 || from != uint64(len(base)) {
		return nil, bad
	}
	delta = delta[n:]
	size, n := binary.Uvarint(delta)
	if n <= 0 {
		return nil, bad
	}
	if size > uint64(limit) { //nolint:gosec // limits are positive
		return nil, fmt.Errorf("an object of %d bytes is a delta, and at most %d are read so", size, limit)
	}
	delta = delta[n:]
	out := make([]byte, 0, min(size, uint64(len(base)+len(delta))*4))
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 {
			if op == 0 || int(op) > len(delta) || uint64(len(out))+uint64(op) > size {
				return nil, bad
			}
			out, delta = append(out, delta[:op]...), delta[op:]
			continue
		}
		var at, length uint64
		for i := range 7 {
			if op>>i&1 == 0 {
				continue
			}
			if len(delta) == 0 {
				return nil, bad
			}
			if i < 4 {
				at |= uint64(delta[0]) << (8 * i)
			} else {
				length |= uint64(delta[0]) << (8 * (i - 4))
			}
			delta = delta[1:]
		}
		if length == 0 {
			length = 0x10000
		}
		if at+length > uint64(len(base)) || uint64(len(out))+length > size {
			return nil, bad
		}
		out = append(out, base[at:at+length]...)
	}
	if uint64(len(out)) != size {
		return nil, bad
	}
	return out, nil
}
