package bundle

import (
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// maxHeld bounds the bytes of indexes and manifests held while reading from a pipe: some ten thousand images.
const maxHeld = 256 << 20

// documents are the indexes and manifests of a streamed bundle. They arrive before everything else, but an index may
// arrive after its children. waiting holds the documents still to come.
type documents struct {
	items   []Item
	absent  []map[format.Sum]bool
	held    map[format.Sum][]byte
	size    int64 // size of held
	waiting map[format.Sum][]want
	asked   map[want]bool
	plain   map[format.Sum]int64 // sizes of the blobs after all documents: configs and contents

	contents int64 // total bytes of plain
}

// A want is a document that an item needs.
type want struct {
	document
	item int
}

func newDocuments(items []Item) (*documents, error) {
	d := &documents{
		items: items, held: make(map[format.Sum][]byte), waiting: make(map[format.Sum][]want),
		asked: make(map[want]bool), plain: make(map[format.Sum]int64),
	}
	for i, it := range items {
		absent, err := absentSet(it)
		if err != nil {
			return nil, err
		}
		d.absent = append(d.absent, absent)
		root, err := format.ParseDigest(it.Descriptor.Digest)
		if err != nil {
			return nil, err
		}
		if err := d.need(i, child{
			sum: root, size: it.Descriptor.Size,
			class: classOf(it.Descriptor.MediaType),
		}); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// need records that an item refers to a blob, and follows it if it is a document that has arrived.
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
			return fmt.Errorf("items refer to more than %d indexes and manifests", maxChildren)
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

// content records a blob that is not a document.
func (d *documents) content(c child) {
	if _, known := d.plain[c.sum]; !known {
		d.plain[c.sum] = c.size
		d.contents = min(d.contents+c.size, format.MaxSize)
	}
}

// children returns the documents that data refers to. An unreadable document has none: the later walk reports it.
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

// arrived takes a blob that may be a document; nil for a damaged one.
func (d *documents) arrived(s format.Sum, data []byte) error {
	if d.size += int64(len(data)); d.size > maxHeld {
		return fmt.Errorf("indexes and manifests exceed %d MiB in total, too much to read from a pipe: read the bundle from a file", maxHeld>>20)
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

// complete reports whether all needed documents have arrived.
func (d *documents) complete() bool { return len(d.waiting) == 0 }

// mayBe reports whether a blob can be a document, as far as known.
func (d *documents) mayBe(b format.Blob) bool {
	_, plain := d.plain[b.Sum]
	return b.Size <= MaxManifest && (d.waiting[b.Sum] != nil || !plain)
}

// missing returns an error for each document that did not arrive.
func (d *documents) missing() []error {
	var all []error
	for s, w := range d.waiting {
		all = append(all, &MissingError{Digest: s.Digest(), Item: d.items[w[0].item].String()})
	}
	return all
}

// A streamSource is a walk's source of manifests for a streamed bundle.
type streamSource struct {
	held  map[format.Sum][]byte
	sizes map[format.Sum]int64
}

func (s streamSource) lookup(_ context.Context, d format.Sum) (int64, bool, error) {
	size, ok := s.sizes[d]
	return size, ok, nil
}

func (s streamSource) read(_ context.Context, d format.Sum, _ int64) ([]byte, error) {
	data, ok := s.held[d]
	if !ok {
		return nil, fmt.Errorf("damaged, or not before all contents")
	}
	return data, nil
}
