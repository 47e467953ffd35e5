package delta

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// An instruction that calls a function or uses data holds the distance to its target, so the same target has other
// bytes at each place. Before compression the target is written in place of the distance: repeated targets are then
// repeated bytes. Only such instructions are recognized, by their first bytes; an operand is always passed over as a
// whole, converted or not. So the bytes that decide are never changed, and the same walk converts them back.

// A machine is a processor architecture.
type machine byte

const (
	machineAMD64 machine = 0
	machineARM64 machine = 1
	machineLast          = machineARM64
)

// A code is a range of an entry that has instructions.
type code struct {
	span
	machine machine
}

// A conversion returns the target of a distance at a position, or the distance of a target.
type conversion func(value, position uint32) uint32

func toTarget(value, position uint32) uint32 { return value + position }

func toDistance(value, position uint32) uint32 { return value - position }

// convert converts the operands of instructions in place.
func (c code) convert(b []byte, with conversion) {
	b = b[c.at : c.at+c.size]
	if c.machine == machineARM64 {
		convertARM64(b, with)
	} else {
		convertAMD64(b, with)
	}
}

// convertAMD64 converts the operands of 32 bits that lie within 16 MiB of their instruction: the last byte is 0 or
// 255 before and after.
func convertAMD64(b []byte, with conversion) {
	const longest, sign, low = 7, 1 << 24, 1<<25 - 1
	for i := 0; i+longest <= len(b); {
		n := opcodeAMD64(b[i:])
		if n == 0 {
			i++
			continue
		}
		operand := b[i+n : i+n+4]
		i += n + 4
		if operand[3] != 0 && operand[3] != 0xff {
			continue
		}
		v := with(binary.LittleEndian.Uint32(operand), uint32(i)) & low
		if v&sign != 0 {
			v |= ^uint32(low)
		}
		binary.LittleEndian.PutUint32(operand, v)
	}
}

// opcodeAMD64 returns the length of the opcode of a call or jump, or of a mov or lea of 64 bits relative to the
// instruction. It returns 0 for any other byte.
func opcodeAMD64(b []byte) int {
	const call, jump, wide, store, load, lea, relative = 0xe8, 0xe9, 0x48, 0x89, 0x8b, 0x8d, 5
	switch {
	case b[0] == call || b[0] == jump:
		return 1
	case b[0]&0xf8 == wide && (b[1] == store || b[1] == load || b[1] == lea) && b[2]&0xc7 == relative:
		return 3
	}
	return 0
}

// convertARM64 converts the operands of bl and adrp.
func convertARM64(b []byte, with conversion) {
	const (
		blMask, bl, blOperand = 0xfc000000, 0x94000000, 0x03ffffff
		adrpMask, adrp        = 0x9f000000, 0x90000000
		lowBits, highBits     = 29, 5 // where the two parts of adrp's operand lie
		high                  = 1<<19 - 1
	)
	for i := 0; i+4 <= len(b); i += 4 {
		w := binary.LittleEndian.Uint32(b[i:])
		switch {
		case w&blMask == bl:
			w = bl | with(w&blOperand, uint32(i)/4)&blOperand
		case w&adrpMask == adrp:
			v := with(w>>lowBits&3|w>>highBits&high<<2, uint32(i)>>12)
			w = w&^(3<<lowBits|high<<highBits) | v&3<<lowBits | v>>2&high<<highBits
		default:
			continue
		}
		binary.LittleEndian.PutUint32(b[i:], w)
	}
}

// programCode returns the ranges of an ELF file that have instructions. A file of another kind has none.
func programCode(file io.ReaderAt, size int64) ([]code, error) {
	const headerLength, entryLength, most = 64, 56, 64
	const machineAt, tableAt, entryAt, countAt = 18, 32, 54, 56
	header := make([]byte, headerLength)
	if size < headerLength {
		return nil, nil
	}
	if _, err := file.ReadAt(header, 0); err != nil {
		return nil, err
	}
	if string(header[:6]) != "\x7fELF\x02\x01" { // 64 bits, little-endian
		return nil, nil
	}
	var m machine
	switch binary.LittleEndian.Uint16(header[machineAt:]) {
	case 62:
		m = machineAMD64
	case 183:
		m = machineARM64
	default:
		return nil, nil
	}
	count := binary.LittleEndian.Uint16(header[countAt:])
	at := int64(min(binary.LittleEndian.Uint64(header[tableAt:]), maxSize))
	table := make([]byte, int(count)*entryLength)
	if count > most || binary.LittleEndian.Uint16(header[entryAt:]) != entryLength ||
		!(span{at, int64(len(table))}).inside(size) {
		return nil, nil
	}
	if _, err := file.ReadAt(table, at); err != nil {
		return nil, err
	}
	var all []code
	for p := range slices.Chunk(table, entryLength) {
		if c, ok := segmentCode(p, size); ok {
			c.machine = m
			all = append(all, c)
		}
	}
	return all, nil
}

// segmentCode returns the range of an ELF segment, if it is loaded and executable.
func segmentCode(p []byte, size int64) (code, bool) {
	const load, executable = 1, 1
	if binary.LittleEndian.Uint32(p) != load || p[4]&executable == 0 {
		return code{}, false
	}
	at := int64(min(binary.LittleEndian.Uint64(p[8:]), uint64(size)))
	length := int64(min(binary.LittleEndian.Uint64(p[32:]), uint64(size-at)))
	return code{span: span{at, length}}, length > 0
}

// code returns the instructions among the parts of an entry, in their order.
func (e *entry) code() ([]code, error) {
	var all []code
	before, end := int64(0), int64(0)
	for _, p := range e.parts {
		found, err := programCode(io.NewSectionReader(p.in, p.at, p.size), p.size)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(found, func(a, b code) int { return cmp.Compare(a.at, b.at) })
		for _, c := range found {
			from, to := max(c.at, p.span.at), min(c.at+c.size, p.span.at+p.span.size)
			c.span = span{from - p.span.at + before, to - from}
			if c.size > 0 && c.at >= end {
				all, end = append(all, c), c.at+c.size
			}
		}
		before += p.span.size
	}
	return all, nil
}

// appendCode appends the description of ranges.
func appendCode(b []byte, all []code) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	at := int64(0)
	for _, c := range all {
		b = append(b, byte(c.machine))
		b = binary.AppendUvarint(b, uint64(c.at-at))
		b = binary.AppendUvarint(b, uint64(c.size))
		at = c.at + c.size
	}
	return b
}

// code reads the description of ranges of an entry of size bytes.
func (s *scanner) code(size int64) []code {
	var all []code
	at := int64(0)
	for n := s.number(maxRanges); n > 0 && s.err == nil; n-- {
		c := code{machine: machine(s.number(int64(machineLast)))}
		c.at = at + s.number(size)
		c.size = s.number(size)
		at = c.at + c.size
		if s.err == nil && (c.size == 0 || !c.inside(size)) {
			s.fail(errors.New("a range of code lies outside its entry"))
		}
		all = append(all, c)
	}
	return all
}

// unzstdCode decodes an entry of kind 2.
func unzstdCode(w io.Writer, data io.Reader, all []code, size int64) error {
	if size > maxDict {
		return damaged("an entry makes %d bytes at once", size)
	}
	content := bytes.NewBuffer(make([]byte, 0, size))
	if err := unzstd(content, data, nil, size); err != nil {
		return err
	}
	for _, c := range all {
		c.convert(content.Bytes(), toDistance)
	}
	_, err := w.Write(content.Bytes())
	return err
}
