package git

import (
	"bufio"
	"container/list"
	"errors"
	"fmt"
	"io"
	"sync"
)

// objects reads the objects of a pack. It remembers some of them. Its methods are safe for concurrent use if its fields
// are not changed.
type objects struct {
	pack io.ReaderAt
	size int64
	// find returns the offset of an object.
	find func(ID) (at int64, ok bool, err error)

	mu     sync.Mutex
	known  map[int64]*list.Element // of *content, by offset
	recent *list.List
	held   int64
	large  *content // the last that is too large for recent; the next of a chain needs it

	// patched, if set, is called with the bytes that a delta and its object take. Its error ends the work.
	patched func(n int) error

	inflaters sync.Pool
}

// A content is an object in memory.
type content struct {
	at   int64
	kind Type
	data []byte
}

// maxHeld bounds the memory of objects that are remembered.
const maxHeld = 48 << 20

func newObjects(pack io.ReaderAt, size int64, find func(ID) (int64, bool, error)) *objects {
	return &objects{pack: pack, size: size, find: find, known: map[int64]*list.Element{}, recent: list.New()}
}

// entry reads the header of the entry at an offset.
func (o *objects) entry(at int64) (entry, error) {
	if at < packHead || at >= o.size-packTail {
		return entry{}, fmt.Errorf("no object can be at byte %d of the pack", at)
	}
	const most = 64 // bytes of a header
	return readEntry(bufio.NewReaderSize(io.NewSectionReader(o.pack, at, most), most), at)
}

// base returns the offset of a delta's base.
func (o *objects) base(e entry) (int64, error) {
	if e.kind == ofsDelta {
		return e.base, nil
	}
	at, ok, err := o.find(e.ref)
	if err == nil && !ok {
		err = &MissingError{e.ref}
	}
	return at, err
}

// kindAt returns the type of an object.
func (o *objects) kindAt(at int64) (Type, error) {
	for depth := 0; ; depth++ {
		e, err := o.entry(at)
		if err != nil {
			return 0, err
		}
		if e.kind <= Tag {
			return e.kind, nil
		}
		if depth > maxChain {
			return 0, errTooDeep
		}
		if at, err = o.base(e); err != nil {
			return 0, err
		}
	}
}

var errTooDeep = errors.New("a chain of deltas is too long")

// at returns the object at an offset. The content must not be changed.
func (o *objects) at(at int64) (Type, []byte, error) {
	var chain []entry
	var c *content
	for c == nil {
		if c = o.remembered(at); c != nil {
			break
		}
		e, err := o.entry(at)
		if err != nil {
			return 0, nil, err
		}
		if e.size > maxDelta {
			return 0, nil, fmt.Errorf("the server sent a version of a file as what differs from another one of %d bytes, and at most %d are read so; depth: 1 brings one version only",
				e.size, int64(maxDelta))
		}
		if e.kind <= Tag {
			data, err := o.inflate(e.data, e.size)
			if err != nil {
				return 0, nil, err
			}
			c = &content{at, e.kind, data}
			o.remember(c)
			break
		}
		if chain = append(chain, e); len(chain) > maxChain {
			return 0, nil, errTooDeep
		}
		if at, err = o.base(e); err != nil {
			return 0, nil, err
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		delta, err := o.inflate(chain[i].data, chain[i].size)
		if err != nil {
			return 0, nil, err
		}
		data, err := patch(c.data, delta, maxDelta)
		if err != nil {
			return 0, nil, fmt.Errorf("the object at byte %d: %w", chain[i].at, err)
		}
		c = &content{chain[i].at, c.kind, data}
		o.remember(c)
		if o.patched == nil {
			continue
		}
		if err := o.patched(len(delta) + len(data)); err != nil {
			return 0, nil, err
		}
	}
	return c.kind, c.data, nil
}

func (o *objects) remembered(at int64) *content {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.large != nil && o.large.at == at {
		return o.large
	}
	e := o.known[at]
	if e == nil {
		return nil
	}
	o.recent.MoveToBack(e)
	return e.Value.(*content)
}

func (o *objects) remember(c *content) {
	const overhead = 256
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(c.data) > maxHeld/4 {
		o.large = c
		return
	}
	if o.known[c.at] != nil {
		return
	}
	o.known[c.at] = o.recent.PushBack(c)
	o.held += int64(len(c.data)) + overhead
	for o.held > maxHeld {
		first := o.recent.Front()
		old := o.recent.Remove(first).(*content)
		delete(o.known, old.at)
		o.held -= int64(len(old.data)) + overhead
	}
}

// object returns an object of an expected type.
func (o *objects) object(id ID, want Type) ([]byte, error) {
	at, ok, err := o.find(id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &MissingError{id}
	}
	t, data, err := o.at(at)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", id, err)
	}
	if t != want {
		return nil, fmt.Errorf("object %s is a %s where a %s is expected", id, t, want)
	}
	return data, nil
}

// peel follows tags to what they point at.
func (o *objects) peel(id ID, visit func(tag ID, at int64)) (ID, Type, error) {
	const deepest = 16
	for range deepest {
		at, ok, err := o.find(id)
		if err != nil {
			return id, 0, err
		}
		if !ok {
			return id, 0, &MissingError{id}
		}
		t, err := o.kindAt(at)
		if err != nil {
			return id, 0, fmt.Errorf("object %s: %w", id, err)
		}
		if t != Tag {
			return id, t, nil
		}
		visit(id, at)
		data, err := o.object(id, Tag)
		if err != nil {
			return id, 0, err
		}
		next, _, err := parseTag(data)
		if err != nil {
			return id, 0, fmt.Errorf("tag %s: %w", id, err)
		}
		id = next
	}
	return id, 0, fmt.Errorf("tag %s: more than %d tags of tags", id, deepest)
}

func (o *objects) inflater() *inflater {
	if f, ok := o.inflaters.Get().(*inflater); ok {
		return f
	}
	return &inflater{src: bufio.NewReaderSize(nil, 4<<10)}
}

// inflate returns the content of a zlib stream of that many bytes.
func (o *objects) inflate(at, size int64) ([]byte, error) {
	f := o.inflater()
	defer o.inflaters.Put(f)
	if err := f.open(io.NewSectionReader(o.pack, at, o.size-at)); err != nil {
		f.z = nil
		return nil, fmt.Errorf("the object at byte %d: %w", at, err)
	}
	out := make([]byte, 0, min(size, 1<<20)+1)
	for {
		if len(out) == cap(out) {
			out = append(make([]byte, 0, min(2*int64(cap(out)), size+1)), out...)
		}
		n, err := f.z.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		switch {
		case int64(len(out)) > size:
			return nil, fmt.Errorf("the object at byte %d has more than its %d bytes", at, size)
		case err == io.EOF:
			if int64(len(out)) < size {
				return nil, fmt.Errorf("the object at byte %d has fewer than its %d bytes", at, size)
			}
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("the object at byte %d: %w", at, err)
		}
	}
}

// inflateTo writes the content of a zlib stream.
func (o *objects) inflateTo(w io.Writer, at int64) error {
	f := o.inflater()
	defer o.inflaters.Put(f)
	if err := f.open(io.NewSectionReader(o.pack, at, o.size-at)); err != nil {
		f.z = nil
		return err
	}
	_, err := io.Copy(w, f.z)
	return err
}
