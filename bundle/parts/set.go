package parts

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Set reads across the parts of a bundle. It is safe for concurrent use.
type Set struct {
	base  string
	list  List // nil without parts.json
	parts []*part
	Size  int64 // bytes of the bundle
}

// A part is one file of the set. It is opened on the first read from it.
type part struct {
	name string
	off  int64 // offset in the bundle
	size int64
	lost error // the known problem, if any

	mu sync.Mutex
	f  *os.File
}

// Open finds the parts of a bundle. Only the first and the last must exist. Sizes must match parts.json.
func Open(base string) (*Set, error) {
	list, err := readPartList(base)
	if err != nil {
		return nil, err
	}
	s := &Set{base: base, list: list}
	if list != nil {
		err = s.listed()
	} else {
		err = s.found()
	}
	if err != nil {
		return nil, err
	}
	if first, last := s.parts[0], s.parts[len(s.parts)-1]; first.lost != nil || last.lost != nil {
		return nil, errors.Join(s.lost()...)
	}
	return s, nil
}

func (s *Set) add(size int64, lost error) {
	s.parts = append(s.parts, &part{name: Name(s.base, len(s.parts)+1), off: s.Size, size: size, lost: lost})
	s.Size += size
}

// listed takes the parts named in parts.json. The error lists all parts of another size.
func (s *Set) listed() error {
	var wrong []error
	for i, want := range s.list {
		name := Name(s.base, i+1)
		size, lost := partSize(name)
		s.add(want.Size, lost)
		if lost == nil && size != want.Size {
			wrong = append(wrong, &Error{Part: name, Reason: fmt.Sprintf("%d bytes long; %s says %d", size,
				filepath.Base(s.base)+ListSuffix, want.Size)})
		}
	}
	return errors.Join(wrong...)
}

// found takes the existing parts. A missing part among them is assumed to have the size of the first.
func (s *Set) found() error {
	last, err := Last(s.base)
	if err != nil {
		return err
	}
	if last == 0 {
		return &fs.PathError{Op: "open", Path: Name(s.base, 1), Err: fs.ErrNotExist}
	}
	first, lost := filledSize(Name(s.base, 1))
	if lost != nil {
		return lost
	}
	for i := range last {
		size, lost := filledSize(Name(s.base, i+1))
		if lost != nil {
			size = first
		}
		s.add(size, lost)
	}
	return nil
}

// partSize returns a file's size, or the reason that it cannot be read.
func partSize(name string) (int64, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, &Error{Part: name, Reason: "missing", absent: true}
	case err != nil:
		return 0, &Error{Part: name, Reason: "cannot be read", Err: err}
	case !info.Mode().IsRegular():
		return 0, &Error{Part: name, Reason: errNotRegular.Error()}
	}
	return info.Size(), nil
}

// filledSize is partSize without a parts.json to compare with. No part is empty: reading on from an empty one would
// never end.
func filledSize(name string) (int64, error) {
	size, lost := partSize(name)
	if lost == nil && size == 0 {
		lost = &Error{Part: name, Reason: "empty"}
	}
	return size, lost
}

// Last returns the highest part number in the directory; 0 if there is none.
func Last(base string) (int, error) {
	entries, err := os.ReadDir(filepath.Dir(base))
	if err != nil {
		return 0, fmt.Errorf("look for the parts of %s: %w", base, err)
	}
	last := 0
	for _, e := range entries {
		if b, n, ok := parsePartName(e.Name()); ok && b == filepath.Base(base) {
			last = max(last, n)
		}
	}
	return last, nil
}

// lost returns every known problem, by part.
func (s *Set) lost() []error {
	var all []error
	for _, p := range s.parts {
		if p.lost != nil {
			all = append(all, p.lost)
		}
	}
	return all
}

// Wrong returns every known problem with the files.
func (s *Set) Wrong() []error {
	if s.list == nil {
		return append([]error{s.noList()}, s.lost()...)
	}
	return s.lost()
}

func (s *Set) noList() error {
	return &Error{Part: s.base + ListSuffix, Reason: "missing, so the number of parts is unknown: copy it too"}
}

// at returns the part that holds a byte.
func (s *Set) at(off int64) int {
	i, ok := slices.BinarySearchFunc(s.parts, off, func(p *part, off int64) int { return cmp.Compare(p.off, off) })
	if !ok {
		i--
	}
	return i
}

// LastSize returns the last part's size.
func (s *Set) LastSize() int64 { return s.parts[len(s.parts)-1].size }

// NameAt returns the file name, without directory, of the part that holds a byte.
func (s *Set) NameAt(off int64) string {
	if off < 0 || off >= s.Size {
		return ""
	}
	return filepath.Base(s.parts[s.at(off)].name)
}

// ReadAt implements io.ReaderAt. A problem with a part is an *Error.
func (s *Set) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		if off >= s.Size {
			return n, io.EOF
		}
		p := s.parts[s.at(off)]
		want := min(int64(len(b)-n), p.off+p.size-off)
		f, err := p.open()
		if err != nil {
			return n, err
		}
		got, err := f.ReadAt(b[n:n+int(want)], off-p.off)
		n, off = n+got, off+int64(got)
		switch {
		case int64(got) == want:
		case errors.Is(err, io.EOF):
			return n, &Error{Part: p.name, Reason: fmt.Sprintf("ends after %d of %d bytes", off-p.off, p.size)}
		default:
			return n, &Error{Part: p.name, Reason: "cannot be read", Err: err}
		}
	}
	return n, nil
}

func (p *part) open() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lost != nil:
		return nil, p.lost
	case p.f != nil:
		return p.f, nil
	}
	f, err := OpenRegular(p.name)
	if err != nil {
		return nil, &Error{Part: p.name, Reason: "cannot be read", Err: err}
	}
	p.f = f
	return f, nil
}

// Stat returns the file info of each open part, and the size of the bundle if the other parts have their expected
// sizes.
func (s *Set) Stat() (size int64, infos []fs.FileInfo, err error) {
	size = s.Size
	for _, p := range s.parts {
		info, err := p.stat()
		if err != nil {
			return 0, nil, err
		}
		if info != nil {
			size += info.Size() - p.size
			infos = append(infos, info)
		}
	}
	return size, infos, nil
}

// stat returns nil while the part is not open.
func (p *part) stat() (fs.FileInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		return nil, nil //nolint:nilnil // there is nothing to look at yet
	}
	return p.f.Stat()
}

// Close closes the parts that were opened.
func (s *Set) Close() error {
	var errs []error
	for _, p := range s.parts {
		p.mu.Lock()
		if p.f != nil {
			errs = append(errs, p.f.Close())
		}
		p.f, p.lost = nil, os.ErrClosed
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Explain adds facts about the parts to an error about opening them.
func (s *Set) Explain(err error) error {
	if s.list != nil || !errors.Is(err, format.ErrDamaged) {
		return err
	}
	next := filepath.Base(Name(s.base, len(s.parts)+1))
	return fmt.Errorf("%w; %s is missing, and perhaps %s too", err, filepath.Base(s.base)+ListSuffix, next)
}
