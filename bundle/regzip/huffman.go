package regzip

import "math/bits"

// The Huffman codes of deflate blocks, made as zlib makes them: ties are decided by the depth of the subtrees and by
// the order of a heap.

const (
	literals    = 286
	distances   = 30
	lengthCodes = 19 // symbols of the code that the lengths of the other two are written in
	endOfBlock  = 256
	heapSize    = 2*literals + 1
)

// A tree is one Huffman code of a block.
type tree struct {
	symbols   int
	maxLength int
	extra     func(symbol int) int // extra bits that follow a symbol
	fixed     func(symbol int) int // length in the fixed code; nil if there is none
	freq      [heapSize]int
	length    [heapSize]int
	code      [literals + 2]uint16
	last      int // the largest symbol used
	dynamic   int // bits of the block's symbols in this code
	static    int // bits in the fixed code

	parent [heapSize]int
	depth  [heapSize]int
	heap   [heapSize]int
	used   int // of heap, from 1 on
	sorted int // start of the sorted nodes at heap's end
}

// build chooses the lengths and codes for the frequencies counted.
func (t *tree) build() {
	t.used, t.sorted, t.last, t.dynamic, t.static = 0, heapSize, -1, 0, 0
	for s := range t.symbols {
		t.length[s], t.depth[s] = 0, 0
		if t.freq[s] > 0 {
			t.used++
			t.heap[t.used] = s
			t.last = s
		}
	}
	for t.used < 2 { // a code needs two symbols
		s := 0
		if t.last < 2 {
			t.last++
			s = t.last
		}
		t.used++
		t.heap[t.used] = s
		t.freq[s] = 1
		t.dynamic--
		if t.fixed != nil {
			t.static -= t.fixed(s)
		}
	}
	for i := t.used / 2; i >= 1; i-- {
		t.sink(i)
	}
	t.join()
	t.setLengths()
	t.setCodes()
}

// join builds the tree: the two least frequent nodes become one until one is left.
func (t *tree) join() {
	node := t.symbols
	for {
		a := t.heap[1]
		t.heap[1] = t.heap[t.used]
		t.used--
		t.sink(1)
		b := t.heap[1]
		t.heap[t.sorted-1], t.heap[t.sorted-2] = a, b
		t.sorted -= 2
		t.freq[node] = t.freq[a] + t.freq[b]
		t.depth[node] = max(t.depth[a], t.depth[b]) + 1
		t.parent[a], t.parent[b] = node, node
		t.heap[1] = node
		node++
		t.sink(1)
		if t.used < 2 {
			break
		}
	}
	t.sorted--
	t.heap[t.sorted] = t.heap[1]
}

func (t *tree) less(a, b int) bool {
	return t.freq[a] < t.freq[b] || t.freq[a] == t.freq[b] && t.depth[a] <= t.depth[b]
}

// sink restores the heap below position i.
func (t *tree) sink(i int) {
	v := t.heap[i]
	for j := 2 * i; j <= t.used; j *= 2 {
		if j < t.used && t.less(t.heap[j+1], t.heap[j]) {
			j++
		}
		if t.less(v, t.heap[j]) {
			break
		}
		t.heap[i] = t.heap[j]
		i = j
	}
	t.heap[i] = v
}

// setLengths gives each symbol its depth in the tree, and shortens codes that are too long.
func (t *tree) setLengths() {
	var count [16]int
	overflow := 0
	t.length[t.heap[t.sorted]] = 0
	for h := t.sorted + 1; h < heapSize; h++ {
		n := t.heap[h]
		bits := t.length[t.parent[n]] + 1
		if bits > t.maxLength {
			bits = t.maxLength
			overflow++
		}
		t.length[n] = bits
		if n > t.last {
			continue // an inner node
		}
		count[bits]++
		t.dynamic += t.freq[n] * (bits + t.extra(n))
		if t.fixed != nil {
			t.static += t.freq[n] * (t.fixed(n) + t.extra(n))
		}
	}
	if overflow == 0 {
		return
	}
	for ; overflow > 0; overflow -= 2 {
		bits := t.maxLength - 1
		for count[bits] == 0 {
			bits--
		}
		count[bits]--
		count[bits+1] += 2
		count[t.maxLength]--
	}
	h := heapSize
	for bits := t.maxLength; bits > 0; bits-- {
		for n := count[bits]; n > 0; {
			h--
			m := t.heap[h]
			if m > t.last {
				continue
			}
			if t.length[m] != bits {
				t.dynamic += (bits - t.length[m]) * t.freq[m]
				t.length[m] = bits
			}
			n--
		}
	}
}

// setCodes assigns the canonical codes of RFC 1951, bits reversed for writing.
func (t *tree) setCodes() {
	var count, next [17]int
	for _, n := range t.length[:t.last+1] {
		count[n]++
	}
	count[0] = 0
	for n := 1; n <= 15; n++ {
		next[n] = (next[n-1] + count[n-1]) << 1
	}
	for s, n := range t.length[:t.last+1] {
		t.code[s] = bits.Reverse16(uint16(next[n])) >> (16 - n)
		next[n]++
	}
}

// A run is an element of the lengths' own code: a length, or a repetition.
type run struct {
	symbol int // 0 to 15: a length; 16: the last one again; 17, 18: zeros
	extra  int // value of the extra bits
	bits   int // number of extra bits
}

// runs appends the lengths of a code in run-length form, as zlib chooses the runs.
func (t *tree) runs(to []run) []run {
	before := -1
	for i := 0; i <= t.last; {
		length, n := t.length[i], 1
		most, least := 7, 4
		switch length {
		case 0:
			most, least = 138, 3
		case before:
			most, least = 6, 3
		}
		for n < most && i+n <= t.last && t.length[i+n] == length {
			n++
		}
		i += n
		switch {
		case n < least:
			for range n {
				to = append(to, run{symbol: length})
			}
		case length != 0:
			if length != before {
				to = append(to, run{symbol: length})
				n--
			}
			to = append(to, run{symbol: 16, extra: n - 3, bits: 2})
		case n <= 10:
			to = append(to, run{symbol: 17, extra: n - 3, bits: 3})
		default:
			to = append(to, run{symbol: 18, extra: n - 11, bits: 7})
		}
		before = length
	}
	return to
}
