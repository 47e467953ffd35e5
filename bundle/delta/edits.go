package delta

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Programs that are linked again differ in many addresses, a few bytes each, while the code around them stays. So the
// new bytes are described as the old ones plus small differences, which are mostly zero and compress well, as bsdiff
// does it. Matches are found with hashes of 8 bytes.
const (
	seedLength = 8
	seedBits   = 22
	maxChain   = 24
	minGain    = 8 // bytes that another alignment must match more
)

// makeEdits returns the data of an entry of kind 1.
func makeEdits(old, new []byte) ([]byte, error) {
	return packZstd(findEdits(old, new), nil)
}

// findEdits returns the edits that makeEdits compresses. Its tables, several times as large as old, are free when it
// returns.
func findEdits(old, new []byte) []byte {
	e := &editor{old: old, new: new, differences: make([]byte, 0, len(new))}
	e.index()
	e.run()
	plain := make([]byte, 0, len(e.steps)+len(e.differences)+len(e.insertions)+3*binary.MaxVarintLen64)
	for _, part := range [][]byte{e.steps, e.differences, e.insertions} {
		plain = binary.AppendUvarint(plain, uint64(len(part)))
		plain = append(plain, part...)
	}
	return plain
}

type editor struct {
	old, new    []byte
	head        []int32 // by hash: last position in old, plus 1
	next        []int32 // by position: the one before with the same hash, plus 1
	position    int     // in old, after the last step
	steps       []byte
	differences []byte
	insertions  []byte
}

func seed(b []byte) uint32 {
	return uint32(binary.LittleEndian.Uint64(b) * 0x9e3779b97f4a7c15 >> (64 - seedBits))
}

func (e *editor) index() {
	e.head, e.next = make([]int32, 1<<seedBits), make([]int32, len(e.old))
	for i := 0; i+seedLength <= len(e.old); i++ {
		h := seed(e.old[i:])
		e.next[i] = e.head[h]
		e.head[h] = int32(i + 1)
	}
}

// find returns the longest match of the new bytes from at on. A match at the position near is looked at, too.
func (e *editor) find(at, near int) (position, length int) {
	try := func(p int) {
		n := 0
		for at+n < len(e.new) && p+n < len(e.old) && e.new[at+n] == e.old[p+n] {
			n++
		}
		if n > length {
			position, length = p, n
		}
	}
	if near >= 0 && near < len(e.old) {
		try(near)
	}
	if at+seedLength > len(e.new) {
		return position, length
	}
	candidate := e.head[seed(e.new[at:])]
	for range maxChain {
		if candidate == 0 || length >= 4<<10 {
			break
		}
		try(int(candidate - 1))
		candidate = e.next[candidate-1]
	}
	return position, length
}

// An alignment says that new[at:] belongs to old[from:].
type alignment struct{ at, from int }

// matches reports whether the byte at i bytes from the alignment is the same.
func (e *editor) matches(a alignment, i int) bool {
	p := a.from + i
	return p >= 0 && p < len(e.old) && e.old[p] == e.new[a.at+i]
}

// run finds alignments. An alignment stays until another one matches minGain bytes more of the bytes ahead.
func (e *editor) run() {
	current := alignment{}
	for at := 0; at < len(e.new); {
		near := current.from + at - current.at
		position, length := e.find(at, near)
		same := 0
		for i := range length {
			if e.matches(alignment{at, near}, i) {
				same++
			}
		}
		switch {
		case length > 0 && position == near:
			at += length
		case length <= same+minGain:
			at += max(1, same-minGain)
		default:
			current = e.change(current, alignment{at, position})
			at += length
		}
	}
	e.change(current, alignment{len(e.new), -1})
}

// change ends one alignment and begins another, and returns it, extended backwards. The bytes between them are
// insertions.
func (e *editor) change(from, to alignment) alignment {
	between := to.at - from.at
	forward := e.extend(between, func(i int) bool { return e.matches(from, i) }, len(e.old)-from.from)
	back := 0
	if to.from >= 0 {
		back = e.extend(between, func(i int) bool { return e.matches(to, -1-i) }, to.from)
	}
	if overlap := forward + back - between; overlap > 0 {
		first, gain, best := between-back, 0, 0
		split := 0
		for i := range overlap {
			if e.matches(from, first+i) {
				gain++
			}
			if e.matches(to, first+i-between) {
				gain--
			}
			if gain > best {
				best, split = gain, i+1
			}
		}
		forward, back = first+split, back-split
	}
	e.step(from, forward, between-forward-back)
	return alignment{to.at - back, to.from - back}
}

// extend returns how many of the most bytes to add to an alignment, so that more of them match than differ.
func (e *editor) extend(most int, same func(i int) bool, inside int) int {
	score, best, length := 0, 0, 0
	for i := range min(most, inside) {
		if same(i) {
			score++
		} else {
			score--
		}
		if score > best {
			best, length = score, i+1
		}
		if score < best-4<<10 {
			break // far from any gain
		}
	}
	return length
}

// step writes length bytes as differences and the next so many as insertions.
func (e *editor) step(a alignment, length, inserted int) {
	e.steps = binary.AppendVarint(e.steps, int64(a.from-e.position))
	e.steps = binary.AppendUvarint(e.steps, uint64(length))
	e.steps = binary.AppendUvarint(e.steps, uint64(inserted))
	for i := range length {
		e.differences = append(e.differences, e.new[a.at+i]-e.old[a.from+i])
	}
	e.insertions = append(e.insertions, e.new[a.at+length:][:inserted]...)
	e.position = a.from + length
}

// applyEdits decodes an entry of kind 1. It returns the length of the steps.
func applyEdits(w io.Writer, data io.Reader, old []byte, size int64) (length int64, err error) {
	if size > maxDict {
		return 0, damaged("an entry makes %d bytes at once", size)
	}
	dec, err := zstd.NewReader(data, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(2*maxWindow))
	if err != nil {
		return 0, err
	}
	defer dec.Close()
	in := &scanner{in: bufio.NewReader(dec)}
	length = in.number(size + 1<<20)
	steps := &scanner{in: bufio.NewReader(bytes.NewReader(in.bytes(length)))}
	differences := in.bytes(in.number(size))
	insertions := in.bytes(in.number(size))
	if err := in.end(); err != nil {
		return 0, err
	}
	out, position := bufio.NewWriterSize(w, 64<<10), int64(0)
	for left := size; left > 0; {
		position += steps.signed()
		n, inserted := steps.number(int64(len(differences))), steps.number(int64(len(insertions)))
		if steps.err == nil && (!(span{position, n}).inside(int64(len(old))) || n+inserted > left) {
			steps.fail(errors.New("an edit lies outside"))
		}
		if steps.err != nil {
			return 0, steps.err
		}
		from := old[position : position+n]
		for i, d := range differences[:n] {
			differences[i] = d + from[i]
		}
		_, err := out.Write(differences[:n])
		if err == nil {
			_, err = out.Write(insertions[:inserted])
		}
		if err != nil {
			return 0, err
		}
		differences, insertions = differences[n:], insertions[inserted:]
		position += n
		left -= n + inserted
	}
	if err := steps.end(); err != nil {
		return 0, err
	}
	return length, out.Flush()
}
