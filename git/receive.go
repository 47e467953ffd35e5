package git

import (
	"compress/zlib"
	"context"
	"crypto/sha1" //nolint:gosec // the names of Git's objects
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sort"
)

// A File is a temporary file: what was written can be read at any place.
type File interface {
	io.Writer
	io.ReaderAt
}

// A Received is a pack as a server sent it, in a file. The id of each object is known, so each content is the one that
// its id stands for.
type Received struct {
	*objects
	offsets []int64 // of the objects, ascending
	ids     []ID    // of the objects, in this order
	kinds   []Type
	byID    []int32 // sorted by id; without deltas whose base is not known yet
}

// A PackError means that a pack is not one that is carried. Another attempt would get the same one.
type PackError struct{ err error }

// Error says why.
func (e *PackError) Error() string { return "the pack: " + e.err.Error() }

// Unwrap returns the reason.
func (e *PackError) Unwrap() error { return e.err }

// CanPass reports that another attempt does not help.
func (*PackError) CanPass() bool { return false }

// Receive reads a pack to its end. The file must be empty. The error is a *PackError, or that of reading or writing.
func Receive(ctx context.Context, r io.Reader, f File) (*Received, error) {
	s := &packScanner{src: r, file: f, hash: sha1.New()} //nolint:gosec // the checksum of packs
	p, err := s.receive(ctx, f)
	if err == nil || s.broken != nil || ctx.Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return p, cmpErr(s.broken, err)
	}
	return nil, &PackError{err}
}

func (s *packScanner) receive(ctx context.Context, f File) (*Received, error) {
	p := &Received{}
	var head [packHead]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return nil, cutShort(err)
	}
	n, err := parsePackHeader(head[:])
	if err != nil {
		return nil, err
	}
	var deltas []int32
	for i := range n {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e, id, err := s.object()
		if err != nil {
			return nil, fmt.Errorf("object %d of %d: %w", i+1, n, err)
		}
		if e.kind > Tag {
			deltas = append(deltas, int32(i)) //nolint:gosec // at most maxObjects
		}
		p.offsets, p.ids, p.kinds = append(p.offsets, e.at), append(p.ids, id), append(p.kinds, e.kind)
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	p.objects = newObjects(f, s.at(), p.offsetOf)
	p.watch(ctx)
	if err := p.resolve(ctx, deltas); err != nil {
		return nil, err
	}
	return p, nil
}

// watch makes the work with deltas end with a context, or when it is more than that of any repository.
func (p *Received) watch(ctx context.Context) {
	left := int64(maxPatched)
	p.patched = func(n int) error {
		if left -= int64(n); left < 0 {
			return fmt.Errorf("its deltas take more than %d bytes of work; name fewer refs, or a depth", int64(maxPatched))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
}

// resolve finds the ids of deltas. One by reference may have a base that is a delta itself.
func (p *Received) resolve(ctx context.Context, deltas []int32) error {
	const rounds = 64
	for range rounds {
		p.sortIDs()
		var later []int32
		for _, i := range deltas {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t, data, err := p.at(p.offsets[i])
			var missing *MissingError
			if errors.As(err, &missing) {
				later = append(later, i)
				continue
			}
			if err != nil {
				return err
			}
			p.ids[i], p.kinds[i] = sum(t, data), t
		}
		if len(later) == 0 {
			p.sortIDs()
			return nil
		}
		if len(later) == len(deltas) {
			break
		}
		deltas = later
	}
	return errors.New("the base of a delta is missing")
}

func (p *Received) sortIDs() {
	p.byID = p.byID[:0]
	for i, t := range p.kinds {
		if t <= Tag {
			p.byID = append(p.byID, int32(i)) //nolint:gosec // at most maxObjects
		}
	}
	slices.SortFunc(p.byID, func(a, b int32) int { return compareIDs(p.ids[a], p.ids[b]) })
}

// number returns the number of an object, by offset.
func (p *Received) number(id ID) (int32, bool) {
	i := sort.Search(len(p.byID), func(i int) bool { return compareIDs(p.ids[p.byID[i]], id) >= 0 })
	if i == len(p.byID) || p.ids[p.byID[i]] != id {
		return 0, false
	}
	return p.byID[i], true
}

func (p *Received) offsetOf(id ID) (int64, bool, error) {
	i, ok := p.number(id)
	if !ok {
		return 0, false, nil
	}
	return p.offsets[i], true, nil
}

// wanted returns the number of an object that must be there and have a type.
func (p *Received) wanted(id ID, t Type) (int32, error) {
	i, ok := p.number(id)
	if !ok {
		return 0, &MissingError{id}
	}
	if p.kinds[i] != t {
		return 0, fmt.Errorf("object %s is a %s where a %s is expected", id, p.kinds[i], t)
	}
	return i, nil
}

// read returns the content of an object.
func (p *Received) read(i int32) ([]byte, error) {
	_, data, err := p.at(p.offsets[i])
	return data, err
}

// A packScanner reads a pack once, hashes it and writes it to a file.
type packScanner struct {
	src       io.Reader
	file      io.Writer
	hash      hash.Hash
	buf       [64 << 10]byte
	mark      int // what is before it was hashed and written
	pos, fill int
	before    int64 // bytes before buf
	z         io.ReadCloser
	broken    error // of the source or the file
}

func (s *packScanner) at() int64 { return s.before + int64(s.pos) }

// flush hashes and writes what was read.
func (s *packScanner) flush() error {
	s.hash.Write(s.buf[s.mark:s.pos])
	_, err := s.file.Write(s.buf[s.mark:s.pos])
	s.mark, s.broken = s.pos, cmpErr(s.broken, err)
	return err
}

func (s *packScanner) more() error {
	if s.pos < s.fill {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.before += int64(s.fill)
	s.mark, s.pos, s.fill = 0, 0, 0
	if s.before > maxPack {
		return fmt.Errorf("it has more than %d bytes; name fewer refs, or a depth", int64(maxPack))
	}
	for range 100 {
		n, err := s.src.Read(s.buf[:])
		if s.fill = n; n > 0 {
			return nil
		}
		if err != nil {
			if err != io.EOF {
				s.broken = err
			}
			return err
		}
	}
	return io.ErrNoProgress
}

// ReadByte implements io.ByteReader, so that nothing is read beyond the end of a zlib stream.
func (s *packScanner) ReadByte() (byte, error) {
	if err := s.more(); err != nil {
		return 0, err
	}
	s.pos++
	return s.buf[s.pos-1], nil
}

// Read implements io.Reader.
func (s *packScanner) Read(b []byte) (int, error) {
	if err := s.more(); err != nil {
		return 0, err
	}
	n := copy(b, s.buf[s.pos:s.fill])
	s.pos += n
	return n, nil
}

// object reads one object, and returns its id unless it is a delta.
func (s *packScanner) object() (e entry, id ID, err error) {
	if e, err = readEntry(s, s.at()); err != nil {
		return e, id, err
	}
	if s.z == nil {
		s.z, err = zlib.NewReader(s)
	} else {
		err = s.z.(zlib.Resetter).Reset(s, nil)
	}
	if err != nil {
		return e, id, cutShort(err)
	}
	h := sha1.New() //nolint:gosec // the names of Git's objects
	var to io.Writer = h
	if e.kind > Tag {
		to = io.Discard
		if e.size > maxDelta {
			return e, id, fmt.Errorf("a delta of %d bytes, and at most %d are read", e.size, int64(maxDelta))
		}
	}
	h.Write(header(e.kind, e.size))
	n, err := io.Copy(to, io.LimitReader(s.z, e.size+1))
	if err != nil {
		return e, id, cutShort(err)
	}
	if n != e.size {
		return e, id, fmt.Errorf("%d bytes are announced, and there are %d or more", e.size, n)
	}
	if n, err := s.z.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return e, id, cutShort(errors.Join(err, errors.New("an object does not end")))
	}
	return e, ID(h.Sum(nil)), nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ended too early, after part of the history: %w", err)
	}
	return err
}

// end compares the checksum, and requires the end of the source.
func (s *packScanner) end() error {
	if err := s.flush(); err != nil {
		return err
	}
	want := ID(s.hash.Sum(nil))
	var tail [packTail]byte
	if _, err := io.ReadFull(s, tail[:]); err != nil {
		return cutShort(err)
	}
	if ID(tail) != want {
		return errors.New("its checksum is wrong")
	}
	if err := s.flush(); err != nil {
		return err
	}
	if _, err := s.ReadByte(); !errors.Is(err, io.EOF) {
		return cmpErr(err, errors.New("there is something behind its end"))
	}
	return nil
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
