package regzip

import "io"

// The deflate encoder of zlib and GNU gzip, written from the published description of their algorithm. Both find
// matches with the same hash chains and lazy evaluation, and differ in when they end a block.
const (
	windowSize   = 32 << 10
	minMatch     = 3
	maxMatch     = 258
	minLookahead = maxMatch + minMatch + 1
	maxDistance  = windowSize - minLookahead
	tooFar       = 4096 // a match of 3 bytes is not worth a larger distance
	hashMask     = 1<<15 - 1
	hashShift    = 5
)

// A variant distinguishes the two programs.
type variant int

const (
	variantZlib variant = iota
	variantGNU
)

// effort has the limits of a compression level.
type effort struct {
	good  int // a match of this length shortens the search for a better one
	lazy  int // a match of this length ends the search for a better one; below level 4, longer matches are not hashed
	nice  int // a match of this length ends the search
	chain int // the most candidates looked at
}

// effortOf returns the limits of levels 1 to 9, as zlib documents them.
func effortOf(level int) effort {
	return [...]effort{
		{4, 4, 8, 4},
		{4, 5, 16, 8},
		{4, 6, 32, 32},
		{4, 4, 16, 16},
		{8, 16, 32, 32},
		{8, 16, 128, 128},
		{8, 32, 128, 256},
		{32, 128, 258, 1024},
		{32, 258, 258, 4096},
	}[level-1]
}

// A deflater compresses like zlib or GNU gzip. Its window is handled exactly as theirs: output depends on when the
// window moves, because a string at its very beginning is never matched.
type deflater struct {
	effort
	variant variant
	level   int
	win     [2 * windowSize]byte
	head    [hashMask + 1]uint16
	prev    [windowSize]uint16

	in         []byte // not yet in the window
	final      bool   // in has everything
	eof        bool   // GNU: the end was met; the window no longer moves
	start      int    // the current string
	lookahead  int    // bytes of the window from start on
	block      int    // start of the current block; negative if it has left the window
	hash       int
	hashed     bool // the first two bytes are in hash
	matchStart int
	matchLen   int
	prevLen    int
	pending    bool // the byte before start has no token yet
	unhashed   int  // strings at the end of the dictionary that are not in the table yet

	blocks blockWriter
}

func newDeflater(w io.Writer, v variant, level int) *deflater {
	d := &deflater{effort: effortOf(level), variant: v, level: level, matchLen: minMatch - 1, prevLen: minMatch - 1}
	d.blocks.init(w, v, level)
	return d
}

// Write compresses p. Input is collected so that the output does not depend on how it is cut into writes.
func (d *deflater) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		take := min(len(p), 4*windowSize-len(d.in))
		d.in, p = append(d.in, p[:take]...), p[take:]
		if len(d.in) == 4*windowSize {
			d.run()
		}
		if d.blocks.err != nil {
			return 0, d.blocks.err
		}
	}
	return n, nil
}

// Close writes the last block.
func (d *deflater) Close() error {
	d.final = true
	d.run()
	d.flush(true)
	d.blocks.end()
	return d.blocks.err
}

// restart begins again with the last bytes before the input, at most a window, as dictionary. It keeps the output.
func (d *deflater) restart(dict []byte) {
	clear(d.head[:])
	d.start, d.block, d.lookahead, d.hash, d.matchStart, d.unhashed = len(dict), len(dict), 0, 0, 0, 0
	d.matchLen, d.prevLen = minMatch-1, minMatch-1
	d.hashed, d.eof, d.pending = len(dict) >= minMatch, false, false
	copy(d.win[:], dict)
	if !d.hashed {
		return
	}
	d.unhashed = minMatch - 1
	d.update(dict[0])
	d.update(dict[1])
	for at := range len(dict) - d.unhashed {
		d.insert(at)
	}
}

// run compresses until the input is too short to continue, or to its end if it is final.
func (d *deflater) run() {
	for {
		if d.lookahead < minLookahead && !d.eof {
			if !d.final && len(d.in) < 2*windowSize {
				return // a fill must never be short, except at the end
			}
			d.fill()
		}
		if d.lookahead == 0 {
			break
		}
		if d.level < 4 {
			d.fast()
		} else {
			d.slow()
		}
	}
	if d.pending {
		d.literal(d.win[d.start-1])
		d.pending = false
	}
}

// fill moves the window if its upper half is used up, and fills it.
func (d *deflater) fill() {
	for d.lookahead < minLookahead {
		if d.start >= windowSize+maxDistance {
			d.slide()
		}
		n := copy(d.win[d.start+d.lookahead:], d.in)
		d.in = d.in[:copy(d.in, d.in[n:])]
		d.lookahead += n
		if !d.hashed && (d.lookahead >= minMatch || d.variant == variantGNU) {
			d.hashed = true
			d.update(d.win[0])
			d.update(d.win[1])
		}
		for n > 0 && d.unhashed > 0 && d.lookahead+d.unhashed >= minMatch {
			d.insert(d.start - d.unhashed)
			d.unhashed--
		}
		if n == 0 {
			if d.variant == variantGNU {
				d.eof = true
				clear(d.win[min(d.start+d.lookahead, len(d.win)):min(d.start+d.lookahead+minMatch-1, len(d.win))])
			}
			return
		}
	}
}

func (d *deflater) slide() {
	copy(d.win[:windowSize], d.win[windowSize:])
	d.start -= windowSize
	d.matchStart -= windowSize
	d.block -= windowSize
	for _, table := range [][]uint16{d.head[:], d.prev[:]} {
		for i, at := range table {
			if at >= windowSize {
				table[i] = at - windowSize
			} else {
				table[i] = 0
			}
		}
	}
}

func (d *deflater) update(b byte) { d.hash = (d.hash<<hashShift ^ int(b)) & hashMask }

// insert adds the string at position at to the table, and returns the last one with the same hash, or 0.
func (d *deflater) insert(at int) int {
	d.update(d.win[at+minMatch-1])
	last := d.head[d.hash]
	d.prev[at&(windowSize-1)] = last
	d.head[d.hash] = uint16(at)
	return int(last)
}

// canInsert reports whether a whole string begins at offset n of the lookahead. GNU gzip inserts incomplete ones,
// too; they never match.
func (d *deflater) canInsert(n int) bool { return d.lookahead-n >= minMatch }

// reachable reports whether a candidate may be matched.
func (d *deflater) reachable(candidate int) bool {
	return candidate != 0 && d.start-candidate <= maxDistance && (d.variant == variantZlib ||
		d.start <= 2*windowSize-minLookahead)
}

// fast handles the string at start at levels 1 to 3: the first match found is used.
func (d *deflater) fast() {
	candidate := 0
	if d.canInsert(0) {
		candidate = d.insert(d.start)
	}
	d.matchLen = minMatch - 1
	if d.reachable(candidate) {
		d.prevLen = minMatch - 1
		d.matchLen = d.longest(candidate)
	}
	if d.matchLen < minMatch {
		full := d.literal(d.win[d.start])
		d.lookahead--
		d.start++
		d.flushIf(full)
		return
	}
	full := d.match(d.start-d.matchStart, d.matchLen)
	n := d.matchLen
	if n <= d.lazy && d.lookahead-n >= minMatch {
		for i := 1; i < n; i++ {
			d.insert(d.start + i)
		}
		d.start += n
	} else {
		d.start += n
		if d.lookahead-n >= minMatch-1 {
			d.hash = int(d.win[d.start])
			d.update(d.win[d.start+1])
		}
	}
	d.lookahead -= n
	d.flushIf(full)
}

// slow handles the string at start at levels 4 to 9: a match is used unless the next string has a longer one.
func (d *deflater) slow() {
	candidate := 0
	if d.canInsert(0) {
		candidate = d.insert(d.start)
	}
	d.prevLen = d.matchLen
	before := d.matchStart
	d.matchLen = minMatch - 1
	if d.prevLen < d.lazy && d.reachable(candidate) {
		d.matchLen = d.longest(candidate)
		if d.matchLen == minMatch && d.start-d.matchStart > tooFar {
			d.matchLen = minMatch - 1
		}
	}
	switch {
	case d.prevLen >= minMatch && d.matchLen <= d.prevLen:
		full := d.match(d.start-1-before, d.prevLen)
		for i := 1; i <= d.prevLen-2; i++ {
			if d.canInsert(i) {
				d.insert(d.start + i)
			}
		}
		d.start += d.prevLen - 1
		d.lookahead -= d.prevLen - 1
		d.pending, d.matchLen = false, minMatch-1
		d.flushIf(full)
	case d.pending:
		d.flushIf(d.literal(d.win[d.start-1]))
		d.start++
		d.lookahead--
	default:
		d.pending = true
		d.start++
		d.lookahead--
	}
}

// longest returns the length of the longest match with the strings in candidate's chain, at most the lookahead, and
// sets matchStart.
func (d *deflater) longest(candidate int) int {
	chain, best, nice := d.chain, d.prevLen, d.nice
	if d.prevLen >= d.good {
		chain >>= 2
	}
	if d.variant == variantZlib {
		nice = min(nice, d.lookahead) // GNU gzip may prefer a match that is longer beyond the end
	}
	limit := max(0, d.start-maxDistance)
	scan := d.win[d.start:min(d.start+maxMatch, len(d.win))]
	for {
		if d.win[candidate+best] == d.win[d.start+best] && d.win[candidate+best-1] == d.win[d.start+best-1] {
			n := common(scan, d.win[candidate:])
			if n > best {
				d.matchStart, best = candidate, n
				if n >= nice {
					break
				}
			}
		}
		candidate = int(d.prev[candidate&(windowSize-1)])
		chain--
		if candidate <= limit || chain == 0 {
			break
		}
	}
	return min(best, d.lookahead)
}

// common returns the length of the common prefix of a and b; b is not shorter.
func common(a, b []byte) int {
	b = b[:len(a)]
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// literal adds a token and reports whether the block is full.
func (d *deflater) literal(b byte) bool { return d.blocks.literal(b, d.start-d.block) }

// match adds a token and reports whether the block is full.
func (d *deflater) match(distance, length int) bool {
	return d.blocks.match(distance, length, d.start-d.block)
}

func (d *deflater) flushIf(full bool) {
	if full {
		d.flush(false)
	}
}

// flush writes the block that ends at start.
func (d *deflater) flush(last bool) {
	var stored []byte
	if d.block >= 0 {
		stored = d.win[d.block:d.start]
	}
	d.blocks.flush(stored, d.start-d.block, last)
	d.block = d.start
}
