package regzip

import (
	"bufio"
	"io"
	"math/bits"
)

// A blockWriter collects the tokens of a block and writes it in the smallest of the three forms.
type blockWriter struct {
	out     *bufio.Writer
	err     error
	acc     uint64
	accBits int

	variant variant
	level   int
	most    int // tokens of a full block
	tokens  []token
	matches int

	lit, dist, lens *tree
	fixed           *tree // the fixed code of literals and lengths
	runs            []run
}

// A token is a literal byte (distance 0) or a match.
type token struct{ distance, value uint16 }

func (b *blockWriter) init(w io.Writer, v variant, level int) {
	b.out, b.variant, b.level = bufio.NewWriterSize(w, 32<<10), v, level
	b.most = 16<<10 - 1
	if v == variantGNU {
		b.most = 32<<10 - 1
	}
	b.lit = &tree{symbols: literals, maxLength: 15, extra: literalExtra, fixed: fixedLength}
	b.dist = &tree{symbols: distances, maxLength: 15, extra: distanceExtra, fixed: func(int) int { return 5 }}
	b.lens = &tree{symbols: lengthCodes, maxLength: 7, extra: repeatExtra}
	b.fixed = &tree{last: 287}
	for s := range 288 {
		b.fixed.length[s] = fixedLength(s)
	}
	b.fixed.setCodes()
	b.reset()
}

// reset begins a block.
func (b *blockWriter) reset() {
	b.tokens, b.matches = b.tokens[:0], 0
	clear(b.lit.freq[:])
	clear(b.dist.freq[:])
	clear(b.lens.freq[:])
	b.lit.freq[endOfBlock] = 1
}

// literal adds a byte. It reports whether the block is full; raw is the number of bytes in it.
func (b *blockWriter) literal(c byte, raw int) bool {
	b.tokens = append(b.tokens, token{value: uint16(c)})
	b.lit.freq[c]++
	return b.full(raw)
}

// match adds a match. It reports whether the block is full; raw is the number of bytes in it.
func (b *blockWriter) match(distance, length, raw int) bool {
	b.tokens = append(b.tokens, token{uint16(distance), uint16(length)})
	b.matches++
	symbol, _, _ := lengthSymbol(length)
	b.lit.freq[symbol]++
	symbol, _, _ = distanceSymbol(distance)
	b.dist.freq[symbol]++
	return b.full(raw)
}

// full reports whether the block ends here. GNU gzip also ends it early where the content seems to compress well
// without many matches.
func (b *blockWriter) full(raw int) bool {
	if b.variant == variantGNU && b.level > 2 && len(b.tokens)&0xfff == 0 {
		estimate := 8 * len(b.tokens)
		for s, n := range b.dist.freq[:distances] {
			estimate += n * (5 + distanceExtra(s))
		}
		if b.matches < len(b.tokens)/2 && estimate/8 < raw/2 {
			return true
		}
	}
	return len(b.tokens) == b.most
}

// flush writes the block. stored is its content, or nil if that is gone; raw is the content's length.
func (b *blockWriter) flush(stored []byte, raw int, last bool) {
	b.lit.build()
	b.dist.build()
	b.runs = b.dist.runs(b.lit.runs(b.runs[:0]))
	for _, r := range b.runs {
		b.lens.freq[r.symbol]++
	}
	b.lens.build()
	sent := lengthCodes
	for sent > 4 && b.lens.length[lengthOrder(sent-1)] == 0 {
		sent--
	}
	dynamic := (b.lit.dynamic + b.dist.dynamic + b.lens.dynamic + 3*sent + 14 + 3 + 7) >> 3
	static := (b.lit.static + b.dist.static + 3 + 7) >> 3
	final := uint32(0)
	if last {
		final = 1
	}
	switch {
	case raw+4 <= min(dynamic, static) && stored != nil:
		b.bits(final, 3)
		b.align()
		b.bits(uint32(raw), 16)
		b.bits(uint32(^raw)&0xffff, 16)
		b.bytes(stored)
	case static <= dynamic:
		b.bits(1<<1|final, 3)
		b.body(b.fixed, nil)
	default:
		b.bits(2<<1|final, 3)
		b.codes(sent)
		b.body(b.lit, b.dist)
	}
	b.reset()
}

// codes writes the codes of a dynamic block.
func (b *blockWriter) codes(sent int) {
	b.bits(uint32(b.lit.last+1-257), 5)
	b.bits(uint32(b.dist.last), 5)
	b.bits(uint32(sent-4), 4)
	for i := range sent {
		b.bits(uint32(b.lens.length[lengthOrder(i)]), 3)
	}
	for _, r := range b.runs {
		b.symbol(b.lens, r.symbol)
		b.bits(uint32(r.extra), r.bits)
	}
}

// body writes the tokens. Without a code of distances, the fixed one is used.
func (b *blockWriter) body(lit, dist *tree) {
	for _, t := range b.tokens {
		if t.distance == 0 {
			b.symbol(lit, int(t.value))
			continue
		}
		symbol, extra, n := lengthSymbol(int(t.value))
		b.symbol(lit, symbol)
		b.bits(uint32(extra), n)
		symbol, extra, n = distanceSymbol(int(t.distance))
		if dist != nil {
			b.symbol(dist, symbol)
		} else {
			b.bits(uint32(bits.Reverse8(uint8(symbol)))>>3, 5)
		}
		b.bits(uint32(extra), n)
	}
	b.symbol(lit, endOfBlock)
}

func (b *blockWriter) symbol(t *tree, s int) { b.bits(uint32(t.code[s]), t.length[s]) }

func (b *blockWriter) bits(v uint32, n int) {
	b.acc |= uint64(v) << b.accBits
	b.accBits += n
	for b.accBits >= 8 {
		b.keep(b.out.WriteByte(byte(b.acc)))
		b.acc >>= 8
		b.accBits -= 8
	}
}

// align fills up the last byte.
func (b *blockWriter) align() {
	if b.accBits > 0 {
		b.bits(0, 8-b.accBits)
	}
}

// wholeByte ends a part of pigz's output at a whole byte: with an empty stored block after an odd number of bits, and
// otherwise with empty blocks of the fixed code, of 10 bits each.
func (b *blockWriter) wholeByte() {
	if b.accBits%2 == 1 {
		b.bits(0, 3)
		b.align()
		b.bytes([]byte{0, 0, 0xff, 0xff})
	}
	for b.accBits > 0 {
		b.bits(1<<1, 10)
	}
}

func (b *blockWriter) bytes(p []byte) {
	_, err := b.out.Write(p)
	b.keep(err)
}

func (b *blockWriter) end() {
	b.align()
	b.keep(b.out.Flush())
}

// keep keeps the first error.
func (b *blockWriter) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// lengthSymbol returns the symbol of a match's length, the value of its extra bits and their number.
func lengthSymbol(length int) (symbol, extra, n int) {
	if length == maxMatch {
		return 285, 0, 0
	}
	v := length - minMatch
	if v < 8 {
		return 257 + v, 0, 0
	}
	n = bits.Len(uint(v)) - 3
	return 257 + 4*n + v>>n, v & (1<<n - 1), n
}

// distanceSymbol returns the symbol of a match's distance, the value of its extra bits and their number.
func distanceSymbol(distance int) (symbol, extra, n int) {
	v := distance - 1
	if v < 4 {
		return v, 0, 0
	}
	n = bits.Len(uint(v)) - 2
	return 2*n + v>>n, v & (1<<n - 1), n
}

func literalExtra(symbol int) int {
	if symbol < 265 || symbol == 285 {
		return 0
	}
	return (symbol - 261) / 4
}

func distanceExtra(symbol int) int { return max(0, symbol/2-1) }

func repeatExtra(symbol int) int {
	switch symbol {
	case 16:
		return 2
	case 17:
		return 3
	case 18:
		return 7
	}
	return 0
}

// fixedLength returns the length of a symbol in the fixed code.
func fixedLength(symbol int) int {
	switch {
	case symbol < 144:
		return 8
	case symbol < 256:
		return 9
	case symbol < 280:
		return 7
	}
	return 8
}

// lengthOrder returns the symbol whose length is written at position i.
func lengthOrder(i int) int {
	return [lengthCodes]int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}[i]
}
