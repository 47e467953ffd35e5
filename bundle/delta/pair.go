package delta

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

const (
	largePiece = 128 << 10 // pieces of this size are entries of their own
	groupSize  = 6 << 20   // bytes of small pieces that share a dictionary
	chunkSize  = 32 << 20  // bytes of a large piece in one entry
	freshGroup = 32 << 20  // bytes of new files in one window
)

// An entry is planned bytes of the store.
type entry struct {
	parts []part
	dict  []part
}

// A part is a range of a piece.
type part struct {
	*piece
	span span
}

func sizeOf(parts []part) (n int64) {
	for _, p := range parts {
		n += p.span.size
	}
	return n
}

// A pairing finds for a new piece an old one that is probably its older version.
type pairing struct {
	names map[string][]*piece
	files map[string][]int // names of files to the blobs that have them
}

func newPairing(old *scan) *pairing {
	p := &pairing{names: map[string][]*piece{}, files: map[string][]int{}}
	for _, x := range old.pieces {
		for _, k := range keys(x.name) {
			p.names[k] = append(p.names[k], x)
		}
	}
	for i, l := range old.layers {
		for _, f := range l.files {
			p.files[f.file.name] = append(p.files[f.file.name], i)
		}
	}
	return p
}

// keys returns the names under which a piece is found, best first: its own, without numbers, and its last element
// without numbers.
func keys(name string) []string {
	general := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, name)
	return []string{"1" + name, "2" + general, "3" + path.Base(general)}
}

// of returns the piece to compare with, or nil.
func (p *pairing) of(x *piece) *piece {
	for _, k := range keys(x.name) {
		all := p.names[k]
		if len(all) == 0 {
			continue
		}
		best := slices.MinFunc(all, func(a, b *piece) int { return cmp.Compare(distance(a, x), distance(b, x)) })
		if k[0] == '3' && (best.size > 4*x.size || x.size > 4*best.size) {
			return nil // a common name, as of a configuration file
		}
		return best
	}
	return nil
}

func distance(a, b *piece) int64 { return max(a.size-b.size, b.size-a.size) }

// frameOf returns the frame of the old archive that shares most names of files with l, or that of the same item.
func (p *pairing) frameOf(l *layer, old *scan) *piece {
	votes := map[int]int{}
	best := -1
	for _, f := range l.files {
		for _, blob := range p.files[f.file.name] {
			votes[blob]++
			if best < 0 || votes[blob] > votes[best] {
				best = blob
			}
		}
	}
	if best >= 0 {
		return old.layers[best].frame
	}
	return p.of(l.frame)
}

// plan orders the new pieces into entries.
func plan(added, old *scan) []entry {
	pairs := newPairing(old)
	frames := map[*piece]*piece{}
	for _, l := range added.layers {
		frames[l.frame] = pairs.frameOf(l, old)
	}
	var entries []entry
	var small, fresh []paired
	for _, x := range added.pieces {
		if x.size == 0 {
			continue
		}
		base, ok := frames[x]
		if !ok {
			base = pairs.of(x)
		}
		switch {
		case base == nil || base.size == 0:
			fresh = append(fresh, paired{new: x})
		case x.size >= largePiece:
			entries = append(entries, chunks(x, base)...)
		default:
			small = append(small, paired{x, base})
		}
	}
	entries = append(entries, together(small, groupSize)...)
	return frugal(append(entries, together(fresh, freshGroup)...))
}

// frugal drops dictionaries beyond the total size that a reader accepts.
func frugal(entries []entry) []entry {
	left := int64(freeDicts)
	for _, e := range entries {
		left += dictRatio * sizeOf(e.parts)
	}
	for i := range entries {
		if left -= sizeOf(entries[i].dict); left < 0 {
			left += sizeOf(entries[i].dict)
			entries[i].dict = nil
		}
	}
	return entries
}

// chunks cuts a large piece into entries, each with the part of its older version that lies at about the same place.
func chunks(x, base *piece) []entry {
	var entries []entry
	for at := int64(0); at < x.size; at += chunkSize {
		r := span{at, min(chunkSize, x.size-at)}
		size := min(base.size, maxDict)
		middle := int64(float64(r.at+r.size/2) / float64(x.size) * float64(base.size))
		from := min(max(0, middle-size/2), base.size-size)
		entries = append(entries, entry{parts: []part{{x, r}}, dict: []part{{base, span{from, size}}}})
	}
	return entries
}

type paired struct{ new, old *piece }

// together makes entries of several pieces; similar names are neighbours.
func together(all []paired, most int64) []entry {
	slices.SortStableFunc(all, func(a, b paired) int { return cmp.Compare(similar(a.new.name), similar(b.new.name)) })
	var entries []entry
	var e entry
	seen := map[*piece]bool{}
	flush := func() {
		if len(e.parts) > 0 {
			entries = append(entries, e)
		}
		e, seen = entry{}, map[*piece]bool{}
	}
	for _, p := range all {
		for at := int64(0); at < p.new.size; at += most { // a piece larger than a group is cut
			r := part{p.new, span{at, min(most, p.new.size-at)}}
			if sizeOf(e.parts)+r.span.size > most || sizeOf(e.dict) > most {
				flush()
			}
			e.parts = append(e.parts, r)
			if p.old != nil && !seen[p.old] {
				seen[p.old] = true
				e.dict = append(e.dict, part{p.old, span{0, min(p.old.size, most)}})
			}
		}
	}
	flush()
	return entries
}

// similar returns a name by which similar files are neighbours: kind, extension, last element, directory.
func similar(name string) string {
	dir, base := path.Split(name)
	return path.Ext(base) + "\x00" + base + "\x00" + dir
}
