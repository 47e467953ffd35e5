package git

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // the checksum of packs
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// An Index has the places of a pack's objects: the content of the file .idx beside it, version 2.
type Index struct {
	ids     []ID
	offsets []int64
	sums    []uint32 // CRC-32 of the packed objects
	pack    ID       // the pack's checksum
}

// sort sorts by id.
func (x *Index) sort() {
	order := make([]int32, len(x.ids))
	for i := range order {
		order[i] = int32(i) //nolint:gosec // at most maxObjects
	}
	slices.SortFunc(order, func(a, b int32) int { return compareIDs(x.ids[a], x.ids[b]) })
	ids, offsets, sums := make([]ID, len(order)), make([]int64, len(order)), make([]uint32, len(order))
	for to, from := range order {
		ids[to], offsets[to], sums[to] = x.ids[from], x.offsets[from], x.sums[from]
	}
	x.ids, x.offsets, x.sums = ids, offsets, sums
}

// Pack returns the pack's checksum, which names its files.
func (x *Index) Pack() ID { return x.pack }

// WriteTo writes the file.
func (x *Index) WriteTo(w io.Writer) (int64, error) {
	h := sha1.New() //nolint:gosec // the checksum of packs
	out := bufio.NewWriterSize(io.MultiWriter(w, h), 64<<10)
	var b [8]byte
	put32 := func(v uint32) {
		binary.BigEndian.PutUint32(b[:], v)
		_, _ = out.Write(b[:4]) // Flush returns the error
	}
	_, _ = out.WriteString("\xfftOc\x00\x00\x00\x02")
	n := 0
	for first := range 256 {
		for n < len(x.ids) && int(x.ids[n][0]) <= first {
			n++
		}
		put32(uint32(n)) //nolint:gosec // at most maxObjects
	}
	for _, id := range x.ids {
		_, _ = out.Write(id[:])
	}
	for _, sum := range x.sums {
		put32(sum)
	}
	var large []int64
	for _, at := range x.offsets {
		if at <= math.MaxInt32 {
			put32(uint32(at)) //nolint:gosec // not negative
			continue
		}
		put32(1<<31 | uint32(len(large))) //nolint:gosec // at most maxObjects
		large = append(large, at)
	}
	for _, at := range large {
		binary.BigEndian.PutUint64(b[:], uint64(at)) //nolint:gosec // not negative
		_, _ = out.Write(b[:])
	}
	_, _ = out.Write(x.pack[:])
	if err := out.Flush(); err != nil {
		return 0, err
	}
	_, err := w.Write(h.Sum(nil))
	return x.size(len(large)), err
}

func (x *Index) size(large int) int64 {
	return indexHead + int64(len(x.ids))*(20+4+4) + 8*int64(large) + 2*packTail
}

const indexHead = 8 + 256*4

// An indexFile is the file .idx of a pack, read in place.
type indexFile struct {
	r       io.ReaderAt
	fanout  [256]uint32
	objects int64
	size    int64
	pack    ID
}

func openIndex(r io.ReaderAt, size int64) (*indexFile, error) {
	bad := errors.New("the index of the pack is damaged")
	x := &indexFile{r: r, size: size}
	head := make([]byte, indexHead)
	if size < indexHead+2*packTail {
		return nil, bad
	}
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", bad, err)
	}
	if string(head[:8]) != "\xfftOc\x00\x00\x00\x02" {
		return nil, bad
	}
	for i := range x.fanout {
		x.fanout[i] = binary.BigEndian.Uint32(head[8+4*i:])
		if i > 0 && x.fanout[i] < x.fanout[i-1] {
			return nil, bad
		}
	}
	x.objects = int64(x.fanout[255])
	large := size - indexHead - 2*packTail - 28*x.objects
	if x.objects > maxObjects || large < 0 || large%8 != 0 {
		return nil, bad
	}
	if _, err := r.ReadAt(x.pack[:], size-2*packTail); err != nil {
		return nil, fmt.Errorf("%w: %w", bad, err)
	}
	return x, nil
}

// number returns the place of an id among all.
func (x *indexFile) number(id ID) (int64, bool, error) {
	from, to := int64(0), int64(x.fanout[id[0]])
	if id[0] > 0 {
		from = int64(x.fanout[id[0]-1])
	}
	const window = 64 // ids that are read at once
	var buf [window * 20]byte
	for from < to {
		// The ids are evenly spread, so the place follows from the next bits.
		at := from
		if to-from > window {
			at += int64(binary.BigEndian.Uint32(id[1:5])) * (to - from) >> 32
			at = max(from, min(at-window/2, to-window))
		}
		n := min(to-at, window)
		if _, err := x.r.ReadAt(buf[:n*20], indexHead+at*20); err != nil {
			return 0, false, err
		}
		first, last := ID(buf[:20]), ID(buf[(n-1)*20:])
		switch {
		case compareIDs(id, first) < 0 && at > from:
			to = at
		case compareIDs(id, last) > 0 && at+n < to:
			from = at + n
		default:
			for i := range n {
				if ID(buf[i*20:]) == id {
					return at + i, true, nil
				}
			}
			return 0, false, nil
		}
	}
	return 0, false, nil
}

// offset returns the place of an object in the pack.
func (x *indexFile) offset(number int64) (int64, error) {
	var b [8]byte
	if _, err := x.r.ReadAt(b[:4], indexHead+24*x.objects+4*number); err != nil {
		return 0, err
	}
	at := binary.BigEndian.Uint32(b[:4])
	if at&(1<<31) == 0 {
		return int64(at), nil
	}
	place := indexHead + 28*x.objects + 8*int64(at&^(1<<31))
	if place+8 > x.size-2*packTail {
		return 0, errors.New("the index of the pack is damaged")
	}
	if _, err := x.r.ReadAt(b[:], place); err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(b[:])), nil //nolint:gosec // a place outside of the pack is refused
}

// all returns the offsets of all objects, ascending.
func (x *indexFile) all() ([]int64, error) {
	list := make([]int64, x.objects)
	buf := make([]byte, 64<<10)
	for at := int64(0); at < x.objects; {
		n := min(x.objects-at, int64(len(buf)/4))
		if _, err := x.r.ReadAt(buf[:4*n], indexHead+24*x.objects+4*at); err != nil {
			return nil, err
		}
		for i := range n {
			v := binary.BigEndian.Uint32(buf[4*i:])
			list[at+i] = int64(v)
			if v&(1<<31) != 0 {
				var err error
				if list[at+i], err = x.offset(at + i); err != nil {
					return nil, err
				}
			}
		}
		at += n
	}
	slices.Sort(list)
	return list, nil
}
