package git

import "encoding/binary"

const (
	block    = 16      // bytes that are looked up in the base
	maxCopy  = 1 << 16 // bytes of one copy; Git writes no longer ones
	maxWords = 127     // bytes of one insertion
)

// diff returns the instructions that make target of base. They depend on the two alone: canonical packs have them, so a
// change here gives every pack another digest.
func diff(base, target []byte) []byte {
	out := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(base))), uint64(len(target)))
	bits := 4
	for 1<<bits < len(base)/block*2 {
		bits++
	}
	table := make([]int32, 1<<bits) // position of a block in the base, plus one
	for at := (len(base)/block - 1) * block; at >= 0; at -= block {
		table[hashBlock(base[at:], bits)] = int32(at + 1) //nolint:gosec // bases have at most maxDiff bytes
	}
	done := 0 // bytes of the target that have instructions
	for at := 0; at+block <= len(target); {
		from := int(table[hashBlock(target[at:], bits)]) - 1
		if from < 0 || from+block > len(base) || string(base[from:from+block]) != string(target[at:at+block]) {
			at++
			continue
		}
		n := block
		for from+n < len(base) && at+n < len(target) && base[from+n] == target[at+n] {
			n++
		}
		for from > 0 && at > done && base[from-1] == target[at-1] {
			from, at, n = from-1, at-1, n+1
		}
		out = appendInsert(out, target[done:at])
		out = appendCopy(out, from, n)
		at += n
		done = at
	}
	return appendInsert(out, target[done:])
}

func hashBlock(b []byte, bits int) uint32 {
	x := binary.LittleEndian.Uint64(b)*0x9e3779b97f4a7c15 ^ binary.LittleEndian.Uint64(b[8:])*0xc2b2ae3d27d4eb4f
	return uint32((x ^ x>>29) * 0xbf58476d1ce4e5b9 >> (64 - bits)) //nolint:gosec // at most bits bits
}

func appendInsert(out, text []byte) []byte {
	for len(text) > 0 {
		n := min(len(text), maxWords)
		out = append(append(out, byte(n)), text[:n]...)
		text = text[n:]
	}
	return out
}

func appendCopy(out []byte, from, n int) []byte {
	for n > 0 {
		length := min(n, maxCopy)
		op := len(out)
		out = append(out, 0x80)
		for i := range 4 {
			if b := byte(from >> (8 * i)); b != 0 {
				out = append(out, b)
				out[op] |= 1 << i
			}
		}
		if length != maxCopy {
			for i := range 2 {
				if b := byte(length >> (8 * i)); b != 0 {
					out = append(out, b)
					out[op] |= 0x10 << i
				}
			}
		}
		from, n = from+length, n-length
	}
	return out
}
