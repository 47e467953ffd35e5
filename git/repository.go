package git

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1" //nolint:gosec // the checksum of packs
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"
)

// A Document says what a pack is the pack of.
type Document struct {
	// Head is the ref that a clone checks out.
	Head string `json:"head,omitempty"`
	// Depth is the number of commits of each history, 0 for all.
	Depth   int           `json:"depth,omitempty"`
	Objects int           `json:"objects"`
	Refs    []DocumentRef `json:"refs"`
	// Shallow are the commits whose parents are missing.
	Shallow []string `json:"shallow,omitempty"`
}

// A DocumentRef is a ref in a Document.
type DocumentRef struct {
	Name   string `json:"name"`
	ID     string `json:"id"`
	Peeled string `json:"peeled,omitempty"`
}

// NewDocument returns the document of a pack.
func NewDocument(want *Wanted, s *Summary) Document {
	d := Document{Head: want.Head, Depth: want.Depth, Objects: s.Objects}
	for _, r := range want.Refs {
		one := DocumentRef{Name: r.Name, ID: r.ID.String()}
		if !r.Peeled.IsZero() {
			one.Peeled = r.Peeled.String()
		}
		d.Refs = append(d.Refs, one)
	}
	for _, id := range s.Shallow {
		d.Shallow = append(d.Shallow, id.String())
	}
	return d
}

// MaxDocument bounds the bytes of a document.
const MaxDocument = 4 << 20

// ParseDocument reads a document, and checks it.
func ParseDocument(data []byte) (refs []Ref, d Document, err error) {
	if n := bytes.Count(data, []byte("{")); n > MaxRefs+1000 { // before it becomes many values
		return nil, d, fmt.Errorf("the document of a repository has %d refs, and at most %d are read", n, MaxRefs)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, d, fmt.Errorf("the document of a repository: %w", err)
	}
	for _, r := range d.Refs {
		id, ok := ParseID(r.ID)
		peeled, peels := ParseID(r.Peeled)
		if !ok || !peels && r.Peeled != "" {
			return nil, d, fmt.Errorf("ref %.80q has no valid id", r.Name)
		}
		refs = append(refs, Ref{Name: r.Name, ID: id, Peeled: peeled})
	}
	if err := checkRefs(refs); err != nil {
		return nil, d, err
	}
	for _, id := range d.Shallow {
		if _, ok := ParseID(id); !ok {
			return nil, d, errors.New("the document of a repository has an invalid shallow commit")
		}
	}
	if d.Head != "" && !slices.ContainsFunc(refs, func(r Ref) bool { return r.Name == d.Head }) {
		return nil, d, fmt.Errorf("the document of a repository has no ref %.80q", d.Head)
	}
	return refs, d, nil
}

// A Repository is a pack with its index and refs, read in place. Its methods are safe for concurrent use.
type Repository struct {
	*objects
	index   *indexFile
	Refs    []Ref
	Head    string
	shallow map[ID]bool
	offsets func() ([]int64, error)
}

// Open opens a repository.
func Open(document []byte, pack io.ReaderAt, size int64, index io.ReaderAt, indexSize int64) (*Repository, error) {
	refs, d, err := ParseDocument(document)
	if err != nil {
		return nil, err
	}
	r := &Repository{Refs: refs, Head: d.Head, shallow: map[ID]bool{}}
	for _, text := range d.Shallow {
		id, _ := ParseID(text) // ParseDocument has checked it
		r.shallow[id] = true
	}
	if r.index, err = openIndex(index, indexSize); err != nil {
		return nil, err
	}
	head := make([]byte, packHead)
	if _, err := pack.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if n, err := parsePackHeader(head); err != nil || int64(n) != r.index.objects {
		return nil, cmpErr(err, errors.New("the pack and its index do not belong together"))
	}
	r.offsets = sync.OnceValues(r.index.all)
	r.objects = newObjects(pack, size, func(id ID) (int64, bool, error) {
		n, ok, err := r.index.number(id)
		if err != nil || !ok {
			return 0, ok, err
		}
		at, err := r.index.offset(n)
		return at, err == nil, err
	})
	return r, nil
}

// Pack returns the checksum of the pack, which names its files.
func (r *Repository) Pack() ID { return r.index.pack }

// Shallow returns the commits whose parents are missing, sorted.
func (r *Repository) Shallow() []ID {
	var list []ID
	for id := range r.shallow {
		list = append(list, id)
	}
	return sortedIDs(list)
}

// Has reports whether the repository has a commit or a tag of that id.
func (r *Repository) Has(id ID) (bool, error) {
	at, ok, err := r.find(id)
	if err != nil || !ok {
		return false, err
	}
	t, err := r.kindAt(at)
	return err == nil && (t == Commit || t == Tag), err
}

// A Request is what somebody wants of a repository, and has.
type Request struct {
	Wants, Haves []ID
	// Depth is the number of commits of each history, 0 for all. Infinite also fills the histories of Shallow.
	Depth int
	// Shallow are the commits whose parents they lack.
	Shallow []ID
}

// Infinite is the depth by which clients ask for whole histories in place of shallow ones.
const Infinite = 1<<31 - 1

// A Selection is a set of objects.
type Selection struct {
	all  bool
	has  []uint64 // bits by number in the index
	n    int
	edge []ID // see Edge
	full []ID // see Filled
}

// Edge returns the commits whose parents are left out because of the depth, sorted.
func (s *Selection) Edge() []ID { return s.edge }

// Filled returns the commits of Request.Shallow whose parents are selected.
func (s *Selection) Filled() []ID { return s.full }

func (s *Selection) add(n int64) bool {
	word, bit := n/64, uint64(1)<<(n%64)
	if s.has[word]&bit != 0 {
		return false
	}
	s.has[word] |= bit
	s.n++
	return true
}

func (s *Selection) contains(n int64) bool { return s.has[n/64]>>(n%64)&1 != 0 }

// Select returns the objects that are wanted and not there: all that the wanted commits reach without those that the
// commits there reach; of trees, those of the named commits. It may have more than that.
func (r *Repository) Select(ctx context.Context, q Request) (*Selection, error) {
	if len(q.Haves) == 0 && q.Depth == 0 && len(q.Shallow) == 0 {
		return &Selection{all: true, n: int(r.index.objects)}, nil
	}
	s := &selecting{Repository: r, ctx: ctx, end: map[ID]bool{}}
	words := (r.index.objects + 63) / 64
	s.out, s.theirs = &Selection{has: make([]uint64, words)}, &Selection{has: make([]uint64, words)}
	if q.Depth == 0 {
		for _, id := range q.Shallow {
			s.end[id] = true
		}
		if err := s.mark(q.Haves); err != nil {
			return nil, err
		}
	}
	wants := q.Wants
	for _, id := range q.Shallow {
		if has, err := r.Has(id); err != nil {
			return nil, err
		} else if has && q.Depth >= Infinite { // what they lack of any history is wanted, too
			wants = append(wants, id)
		}
	}
	if err := s.walk(wants, q.Depth); err != nil {
		return nil, err
	}
	s.out.edge = sortedIDs(s.out.edge)
	for _, id := range q.Shallow {
		n, ok, err := r.index.number(id)
		if err != nil {
			return nil, err
		}
		_, edge := slices.BinarySearchFunc(s.out.edge, id, compareIDs)
		if ok && q.Depth > 0 && !edge && !r.shallow[id] && s.out.contains(n) {
			s.out.full = append(s.out.full, id)
		}
	}
	return s.out, nil
}

// selecting is one Select.
type selecting struct {
	*Repository
	ctx         context.Context //nolint:containedctx // of the one call
	end         map[ID]bool     // commits whose parents do not count
	out, theirs *Selection
	steps       int
}

// stop returns the context's error now and then.
func (s *selecting) stop() error {
	if s.steps++; s.steps%256 == 0 && s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return nil
}

func (s *selecting) number(id ID) (int64, error) {
	n, ok, err := s.index.number(id)
	if err == nil && !ok {
		err = &MissingError{id}
	}
	return n, err
}

func (s *selecting) commit(id ID) (commit, error) {
	data, err := s.object(id, Commit)
	if err != nil {
		return commit{}, err
	}
	c, err := parseCommit(data)
	if err != nil {
		return c, fmt.Errorf("commit %s: %w", id, err)
	}
	if s.end[id] || s.shallow[id] {
		c.parents = nil
	}
	return c, nil
}

// mark marks what commits have that are there.
func (s *selecting) mark(haves []ID) error {
	var ends []ID
	for _, id := range haves {
		if ok, err := s.Has(id); err != nil || !ok {
			if err != nil {
				return err
			}
			continue
		}
		end, t, err := s.peel(id, func(ID, int64) {})
		if err != nil || t != Commit {
			return err
		}
		c, err := s.commit(end)
		if err != nil {
			return err
		}
		if err := s.tree(c.tree, s.theirs, 0); err != nil {
			return err
		}
		ends = append(ends, end)
	}
	return s.history(ends, ID{})
}

// history marks commits and what they reach, without trees. It ends at one commit.
func (s *selecting) history(from []ID, to ID) error {
	level, err := s.enter(nil, from, s.theirs)
	for len(level) > 0 && err == nil {
		var next []ID
		for _, id := range level {
			if id == to {
				return nil
			}
			c, err := s.commit(id)
			if err != nil {
				return err
			}
			if next, err = s.enter(next, c.parents, s.theirs); err != nil {
				return err
			}
		}
		level = next
	}
	return err
}

// enter marks commits, and adds those to a list that are new. So no list has a commit twice.
func (s *selecting) enter(list, ids []ID, to *Selection) ([]ID, error) {
	for _, id := range ids {
		n, err := s.number(id)
		if err != nil {
			return nil, err
		}
		if err := s.stop(); err != nil {
			return nil, err
		}
		if !s.theirs.contains(n) && to.add(n) {
			list = append(list, id)
		}
	}
	return list, nil
}

// walk adds what commits and tags reach, level by level.
func (s *selecting) walk(wants []ID, depth int) error {
	var level []ID
	for _, id := range wants {
		var inner error
		end, t, err := s.peel(id, func(tag ID, _ int64) {
			n, err := s.number(tag)
			if err != nil {
				inner = err
				return
			}
			s.out.add(n)
		})
		if err := errors.Join(err, inner); err != nil {
			return err
		}
		if t != Commit {
			return fmt.Errorf("object %s is a %s", id, t)
		}
		if level, err = s.enter(level, []ID{end}, s.out); err != nil {
			return err
		}
	}
	for d := 1; len(level) > 0; d++ {
		var next []ID
		for _, id := range level {
			c, err := s.commit(id)
			if err != nil {
				return err
			}
			if err := s.tree(c.tree, s.out, 0); err != nil {
				return err
			}
			if d == depth && len(c.parents) > 0 {
				s.out.edge = append(s.out.edge, id)
				continue
			}
			if next, err = s.enter(next, c.parents, s.out); err != nil {
				return err
			}
		}
		level = next
	}
	return nil
}

// tree adds a tree and what is below it.
func (s *selecting) tree(id ID, to *Selection, depth int) error {
	if depth > deepest {
		return fmt.Errorf("there are more than %d directories above each other", deepest)
	}
	n, err := s.number(id)
	if err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}
	if s.theirs.contains(n) || !to.add(n) {
		return nil
	}
	data, err := s.object(id, Tree)
	if err != nil {
		return err
	}
	return eachEntry(data, func(e treeEntry) error {
		switch e.kind {
		case Tree:
			return s.tree(e.id, to, depth+1)
		case Blob:
			n, err := s.number(e.id)
			if err == nil && !s.theirs.contains(n) {
				to.add(n)
			}
			return err
		}
		return nil
	})
}

// WritePack writes a pack of the selected objects, compressed.
func (r *Repository) WritePack(ctx context.Context, w io.Writer, s *Selection) error {
	offsets, err := r.offsets()
	if err != nil {
		return err
	}
	chosen := make([]bool, len(offsets)) // by place in offsets
	for n := int64(0); !s.all && n < r.index.objects; n++ {
		if !s.contains(n) {
			continue
		}
		at, err := r.index.offset(n)
		if err != nil {
			return err
		}
		if i, ok := slices.BinarySearch(offsets, at); ok {
			chosen[i] = true
		}
	}
	out := &transferWriter{w: bufio.NewWriterSize(w, 64<<10), hash: sha1.New()} //nolint:gosec // the checksum of packs
	out.write(packHeader(s.n))
	places := make([]int64, len(offsets)) // in the new pack; 0 for none
	for i, at := range offsets {
		if i%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !s.all && !chosen[i] {
			continue
		}
		places[i] = out.at
		if err := r.transfer(out, at, func(base int64) int64 {
			if j, ok := slices.BinarySearch(offsets, base); ok {
				return places[j]
			}
			return 0
		}); err != nil {
			return fmt.Errorf("the object at byte %d: %w", at, err)
		}
	}
	return out.close()
}

// transfer writes the object at an offset. place returns where its base is in the new pack, 0 if it is not there.
func (r *Repository) transfer(out *transferWriter, at int64, place func(base int64) int64) error {
	e, err := r.entry(at)
	if err != nil {
		return err
	}
	if e.kind <= Tag {
		out.write(entryHeader(e.kind, e.size, 0))
		return out.deflate(func(w io.Writer) error { return r.inflateTo(w, e.data) })
	}
	base, err := r.base(e)
	if err != nil {
		return err
	}
	if to := place(base); to > 0 {
		out.write(entryHeader(ofsDelta, e.size, out.at-to))
		return out.deflate(func(w io.Writer) error { return r.inflateTo(w, e.data) })
	}
	t, data, err := r.at(at)
	if err != nil {
		return err
	}
	out.write(entryHeader(t, int64(len(data)), 0))
	return out.deflate(func(w io.Writer) error { _, err := w.Write(data); return err })
}

// A transferWriter writes a pack for a client.
type transferWriter struct {
	w    *bufio.Writer
	hash hash.Hash
	at   int64
	z    *zlib.Writer
	err  error
}

// Write implements io.Writer for the compressor.
func (o *transferWriter) Write(b []byte) (int, error) {
	o.write(b)
	return len(b), o.err
}

func (o *transferWriter) write(b []byte) {
	if o.err != nil {
		return
	}
	o.hash.Write(b)
	var n int
	n, o.err = o.w.Write(b)
	o.at += int64(n)
}

func (o *transferWriter) deflate(produce func(io.Writer) error) (err error) {
	if o.z == nil {
		if o.z, err = zlib.NewWriterLevel(o, zlib.BestSpeed); err != nil {
			return err
		}
	} else {
		o.z.Reset(o)
	}
	if err := produce(o.z); err != nil {
		return err
	}
	return errors.Join(o.z.Close(), o.err)
}

func (o *transferWriter) close() error {
	tail := o.hash.Sum(nil)
	o.write(tail)
	return errors.Join(o.err, o.w.Flush())
}

// Reaches reports whether a commit's history has another commit.
func (r *Repository) Reaches(ctx context.Context, from, to ID) (bool, error) {
	if ok, err := r.Has(to); err != nil || !ok {
		return false, err
	}
	s := &selecting{Repository: r, ctx: ctx, end: map[ID]bool{}, theirs: &Selection{has: make([]uint64,
		(r.index.objects+63)/64)}}
	n, err := s.number(to)
	if err != nil {
		return false, err
	}
	from, t, err := r.peel(from, func(ID, int64) {})
	if err != nil || t != Commit {
		return false, err
	}
	err = s.history([]ID{from}, to)
	return s.theirs.contains(n), err
}
