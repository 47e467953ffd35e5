// Package iso reads files from optical disk images (ECMA-119, "ISO 9660"), with the long names of Rock Ridge or Joliet.
// It needs no mount and no privileges. An image may be hostile: all its positions and lengths are checked.
package iso

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf16"
)

const (
	sector         = 2048
	firstVolume    = 16       // the sector of the first descriptor
	maxVolumes     = 64       // descriptors
	maxDirectory   = 64 << 20 // bytes: some 400,000 files
	maxFiles       = 1 << 20  // of an image
	maxDepth       = 32       // nested directories
	maxExtents     = 64       // of a file: 4 GiB each
	maxContinued   = 16       // continuation areas of one file
	maxName        = 255      // bytes of a name in Rock Ridge, as on Linux
	maxWalk        = 1 << 29  // bytes of all directories read by one walk: one may lie in another
	rootRecord     = 156      // offset of the root directory's record in a descriptor
	shortestRecord = 34       // bytes of a directory record

	flagDirectory = 0x02
	flagContinues = 0x80 // the next record continues the file
)

// ErrNotExist means an image has no such file.
var ErrNotExist = errors.New("no such file in the image")

// An Image is an open image. It is safe for concurrent use if its reader is.
type Image struct {
	r      io.ReaderAt
	size   int64
	joliet bool
	rock   bool
	skip   int // bytes before Rock Ridge's data about a file
	root   entry
}

// An entry is a file or directory.
type entry struct {
	name    string
	dir     bool
	packed  bool // compressed content, which only some systems read
	extents []extent
}

type extent struct{ at, size int64 }

func (e entry) size() (n int64) {
	for _, x := range e.extents {
		n += x.size
	}
	return n
}

// Open reads the descriptors of an image of size bytes.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	i := &Image{r: r, size: size}
	var primary, joliet []byte
	for n := range int64(maxVolumes) {
		d := make([]byte, sector)
		if _, err := r.ReadAt(d, (firstVolume+n)*sector); err != nil {
			return nil, notImage(err)
		}
		if string(d[1:6]) != "CD001" {
			return nil, notImage(nil)
		}
		if d[0] == 255 {
			break
		}
		switch {
		case d[0] == 1 && primary == nil:
			primary = d
		case d[0] == 2 && bytes.HasPrefix(d[88:], []byte("%/")) && strings.ContainsRune("@CE", rune(d[90])):
			joliet = d
		}
	}
	if primary == nil || binary.LittleEndian.Uint16(primary[128:]) != sector {
		return nil, notImage(nil)
	}
	var err error
	if i.root, err = i.rootOf(primary); err != nil {
		return nil, err
	}
	if err := i.findRock(); err != nil {
		return nil, err
	}
	if !i.rock && joliet != nil {
		i.joliet = true
		i.root, err = i.rootOf(joliet)
	}
	return i, err
}

func notImage(err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return errors.New("not an ISO 9660 image, or a truncated one")
}

func (i *Image) rootOf(descriptor []byte) (entry, error) {
	record := descriptor[rootRecord : rootRecord+shortestRecord]
	x, err := i.extent(record)
	return entry{dir: true, extents: []extent{x}}, err
}

// extent returns the place of a record's file, which must be inside the image.
func (i *Image) extent(record []byte) (extent, error) {
	x := extent{
		at:   (int64(binary.LittleEndian.Uint32(record[2:])) + int64(record[1])) * sector,
		size: int64(binary.LittleEndian.Uint32(record[10:])),
	}
	if x.at+x.size > i.size {
		return x, errors.New("the image is truncated or damaged: a file lies outside")
	}
	if record[26] != 0 || record[27] != 0 {
		return x, errors.New("the image has interleaved files, which are not supported")
	}
	return x, nil
}

// findRock looks for Rock Ridge in the root directory's record of itself.
func (i *Image) findRock() error {
	if i.root.size() < shortestRecord {
		return nil
	}
	data := make([]byte, min(i.root.size(), sector))
	if _, err := i.r.ReadAt(data, i.root.extents[0].at); err != nil {
		return notImage(err)
	}
	if n := int(data[0]); n >= shortestRecord && n <= len(data) {
		use := systemUse(data[:n])
		if len(use) >= 7 && string(use[:2]) == "SP" && use[4] == 0xbe && use[5] == 0xef {
			i.rock, i.skip = true, int(use[6])
		}
	}
	return nil
}

// systemUse returns the bytes after the name in a record.
func systemUse(record []byte) []byte {
	from := 33 + int(record[32])
	if from%2 == 1 {
		from++
	}
	return record[min(from, len(record)):]
}

// list reads a directory.
func (i *Image) list(dir entry) ([]entry, error) {
	if dir.size() > maxDirectory {
		return nil, fmt.Errorf("a directory of the image has more than %d MiB", maxDirectory>>20)
	}
	data := make([]byte, dir.size())
	if _, err := io.ReadFull(i.reader(dir), data); err != nil {
		return nil, err
	}
	var all []entry
	continued := false
	rock := rockReader{image: i, left: maxDirectory}
	for at := 0; at < len(data); {
		n := int(data[at])
		if n == 0 { // records do not cross sectors
			at = (at/sector + 1) * sector
			continue
		}
		if n < shortestRecord || at+n > len(data) || 33+int(data[at+32]) > n {
			return nil, errors.New("a directory of the image is damaged")
		}
		record := data[at : at+n]
		at += n
		e, err := i.entry(record, &rock)
		if err != nil {
			return nil, err
		}
		if e.name == "" { // the directory itself, or its parent
			continue
		}
		if last := len(all) - 1; continued && last >= 0 {
			if all[last].extents = append(all[last].extents, e.extents...); len(all[last].extents) > maxExtents {
				return nil, errors.New("a file of the image has too many parts")
			}
		} else if all = append(all, e); len(all) > maxFiles {
			return nil, errors.New("the image has too many files")
		}
		continued = record[25]&flagContinues != 0
	}
	return all, nil
}

func (i *Image) entry(record []byte, rock *rockReader) (entry, error) {
	name := record[33 : 33+int(record[32])]
	if len(name) == 1 && name[0] <= 1 {
		return entry{}, nil
	}
	x, err := i.extent(record)
	e := entry{dir: record[25]&flagDirectory != 0, extents: []extent{x}}
	if err != nil {
		return e, err
	}
	switch {
	case i.joliet:
		e.name = utf16Name(name)
	case i.rock:
		use := systemUse(record)
		if err := rock.read(use[min(i.skip, len(use)):], &e); err != nil {
			return e, err
		}
	}
	if e.name == "" {
		e.name = strings.ToLower(string(name))
	}
	if !i.rock {
		e.name, _, _ = strings.Cut(e.name, ";")
		e.name = strings.TrimSuffix(e.name, ".")
	}
	if e.name == "" || e.name == "." || e.name == ".." || strings.ContainsAny(e.name, "/\x00") {
		return e, errors.New("a file of the image has an invalid name")
	}
	return e, nil
}

func utf16Name(b []byte) string {
	units := make([]uint16, len(b)/2)
	for k := range units {
		units[k] = binary.BigEndian.Uint16(b[2*k:])
	}
	return string(utf16.Decode(units))
}

// A rockReader reads Rock Ridge's data about the files of one directory.
type rockReader struct {
	image *Image
	left  int64 // bytes of continuation areas: many files may share one
}

// read reads the data about a file: its name, and whether it is compressed.
func (r *rockReader) read(use []byte, e *entry) error {
	for range maxContinued {
		var next extent
		for len(use) >= 4 {
			n := int(use[2])
			if n < 4 || n > len(use) {
				break
			}
			field := use[:n]
			use = use[n:]
			switch kind := string(field[:2]); {
			case kind == "NM" && n >= 5:
				if e.name += string(field[5:]); len(e.name) > maxName {
					return fmt.Errorf("a file of the image has a name of more than %d bytes", maxName)
				}
			case kind == "ZF":
				e.packed = true
			case kind == "CE" && n >= 28:
				block, offset := binary.LittleEndian.Uint32(field[4:]), binary.LittleEndian.Uint32(field[12:])
				next.at = int64(block)*sector + int64(offset)
				next.size = int64(binary.LittleEndian.Uint32(field[20:]))
			case kind == "ST":
				use = nil
			}
		}
		if next.size == 0 {
			return nil
		}
		if next.size > sector || next.at+next.size > r.image.size {
			return errors.New("the data about a file lies outside of the image")
		}
		if r.left -= next.size; r.left < 0 {
			return fmt.Errorf("the data about the files of a directory has more than %d MiB", maxDirectory>>20)
		}
		use = make([]byte, next.size)
		if _, err := r.image.r.ReadAt(use, next.at); err != nil {
			return err
		}
	}
	return errors.New("the data about a file has no end")
}

// Open returns the content of a file. Paths have slashes, but no leading slash.
func (i *Image) Open(name string) (*io.SectionReader, error) {
	at := i.root
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if !at.dir {
			return nil, fmt.Errorf("%s: %w", name, ErrNotExist)
		}
		all, err := i.list(at)
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range all {
			if e.name == part {
				at, found = e, true
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("%s: %w", name, ErrNotExist)
		}
	}
	if at.dir || at.packed {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return i.reader(at), nil
}

// Walk calls f for each file, directories in the image's order.
func (i *Image) Walk(f func(name string, size int64) error) error {
	w := &walk{image: i, f: f, seen: map[int64]bool{}}
	return w.dir(i.root, "", 0)
}

type walk struct {
	image *Image
	f     func(name string, size int64) error
	seen  map[int64]bool // visited directories: an image may have loops
	files int
	bytes int64 // of directories
}

func (w *walk) dir(dir entry, name string, depth int) error {
	if at := dir.extents[0].at; w.seen[at] || depth > maxDepth {
		return errors.New("the directories of the image form a loop, or are too deep")
	}
	w.seen[dir.extents[0].at] = true
	if w.bytes += dir.size(); w.bytes > maxWalk {
		return fmt.Errorf("the directories of the image have more than %d MiB", maxWalk>>20)
	}
	all, err := w.image.list(dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		if w.files++; w.files > maxFiles {
			return errors.New("the image has too many files")
		}
		to := path.Join(name, e.name)
		if e.dir {
			err = w.dir(e, to, depth+1)
		} else {
			err = w.f(to, e.size())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *Image) reader(e entry) *io.SectionReader {
	return io.NewSectionReader(content{i.r, e.extents}, 0, e.size())
}

// content is a file of one or more parts.
type content struct {
	r       io.ReaderAt
	extents []extent
}

// ReadAt implements io.ReaderAt.
func (c content) ReadAt(p []byte, off int64) (n int, err error) {
	for _, x := range c.extents {
		if off >= x.size {
			off -= x.size
			continue
		}
		part := p[n:min(int64(len(p)), int64(n)+x.size-off)]
		m, err := c.r.ReadAt(part, x.at+off)
		if n += m; m < len(part) {
			return n, err
		}
		if n == len(p) {
			return n, nil
		}
		off = 0
	}
	return n, io.EOF
}
