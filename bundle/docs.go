package bundle

import (
	"context"
	"fmt"
)

// maxHeld bounds the indexes and manifests that a reader of a pipe holds, in bytes: some ten thousand images.
const maxHeld = 256 << 20

// documents are the indexes and manifests of a bundle that comes as a stream. They arrive before everything else, in an
// order in which an index may come after its children; awaited says what is still to come.
type documents struct {
	items   []Item
	absent  []map[sum]bool
	held    map[sum][]byte
	size    int64 // of held
	waiting map[sum][]want
	asked   map[want]bool
	plain   map[sum]int64 // sizes of what comes after all documents: configs and contents

	contents int64 // bytes that plain says there are
}

// A want is an item's need of a document.
type want struct {
	document
	item int
}

func newDocuments(items []Item) (*documents, error) {
	d := &documents{
		items: items, held: make(map[sum][]byte), waiting: make(map[sum][]want), asked: make(map[want]bool), plain: make(map[sum]int64),
	}
	for i, it := range items {
		absent, err := absentSet(it)
		if err != nil {
			return nil, err
		}
		d.absent = append(d.absent, absent)
		root, err := parseDigest(it.Descriptor.Digest)
		if err != nil {
			return nil, err
		}
		if err := d.need(i, child{sum: root, size: it.Descriptor.Size, class: classOf(it.Descriptor.MediaType)}); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// need notes that an item refers to a blob, and follows it if it is a document that is there.
func (d *documents) need(item int, c child) error {
	if c.class > classManifest {
		d.content(c)
		return nil
	}
	stack := []want{{document{c.sum, c.class}, item}}
	for len(stack) > 0 {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if d.asked[w] {
			continue
		}
		if d.asked[w] = true; len(d.asked) > maxChildren {
			return fmt.Errorf("its items refer to more than %d indexes and manifests", maxChildren)
		}
		data, ok := d.held[w.sum]
		if !ok {
			d.waiting[w.sum] = append(d.waiting[w.sum], w)
			continue
		}
		stack = append(stack, d.children(w, data)...)
	}
	return nil
}

// content notes a blob that is not a document.
func (d *documents) content(c child) {
	if _, known := d.plain[c.sum]; !known {
		d.plain[c.sum] = c.size
		d.contents = min(d.contents+c.size, maxSize)
	}
}

// children returns the documents that one refers to. A document that can't be read has none: who walks meets that again.
func (d *documents) children(w want, data []byte) []want {
	all, err := parseChildren(data, w.class)
	if err != nil {
		return nil
	}
	var found []want
	for _, c := range all {
		if c.class > classManifest {
			d.content(c)
			continue
		}
		if _, ok := d.absent[w.item][c.sum]; ok && w.class == classIndex {
			continue
		}
		found = append(found, want{document{c.sum, c.class}, w.item})
	}
	return found
}

// arrived takes a blob that may be a document; nil for one that is damaged.
func (d *documents) arrived(s sum, data []byte) error {
	if d.size += int64(len(data)); d.size > maxHeld {
		return fmt.Errorf("its indexes and manifests have more than %d MiB together, which is too much for a pipe: read it from a file", maxHeld>>20)
	}
	if data != nil {
		d.held[s] = data
	}
	waiting := d.waiting[s]
	delete(d.waiting, s)
	for _, w := range waiting {
		for _, c := range d.children(w, data) {
			if err := d.need(w.item, child{sum: c.sum, class: c.class}); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete reports whether all documents are there that items need.
func (d *documents) complete() bool { return len(d.waiting) == 0 }

// mayBe reports whether a blob can be a document, given what is known by now.
func (d *documents) mayBe(b dirBlob) bool {
	_, plain := d.plain[b.sum]
	return b.size <= maxManifest && (d.waiting[b.sum] != nil || !plain)
}

// missing returns an error for each document that did not come.
func (d *documents) missing() []error {
	var all []error
	for s, w := range d.waiting {
		all = append(all, &MissingError{Digest: s.digest(), Item: d.items[w[0].item].String()})
	}
	return all
}

// A streamSource is what a walk over a bundle from a stream reads.
type streamSource struct {
	held  map[sum][]byte
	sizes map[sum]int64
}

func (s streamSource) lookup(_ context.Context, d sum) (int64, bool, error) {
	size, ok := s.sizes[d]
	return size, ok, nil
}

func (s streamSource) read(_ context.Context, d sum, _ int64) ([]byte, error) {
	data, ok := s.held[d]
	if !ok {
		return nil, fmt.Errorf("it does not come before all contents, or is damaged")
	}
	return data, nil
}
