package delta

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

const (
	magic      = "kkbundle delta 1\n"
	maxHead    = 1 << 20
	maxWindow  = 64 << 20
	maxDict    = 48 << 20
	dictRatio  = 16      // all dictionaries together: so many bytes for each made byte of the store,
	freeDicts  = 1 << 30 // and these
	blobRatio  = 64      // all blobs together: so many bytes for each byte of the store,
	freeBlobs  = 1 << 30 // and these
	maxText    = 256 << 10
	maxRanges  = 4 << 20 // of one blob
	maxSize    = 1 << 50
	dictID     = 1
	numSection = 3
)

// The sections.
const (
	sectionBase = iota
	sectionMade
	sectionBlobs
)

// A kind says how the data of an entry makes its bytes.
type kind byte

const (
	kindZstd  kind = 0
	kindEdits kind = 1
	kindCode  kind = 2
)

// featureCode is the feature of a delta that has entries of kind 2.
const featureCode = "code"

// A damageError is an error about wrong bytes in a delta. It matches bundle.ErrDamaged.
type damageError struct{ reason string }

// Error names the wrong place.
func (e *damageError) Error() string { return "the delta is damaged: " + e.reason }

// Hint returns the remedy.
func (*damageError) Hint() string { return "copy the delta again from where it was made" }

// Is makes the exit code that of a damaged bundle.
func (*damageError) Is(target error) bool { return target == bundle.ErrDamaged }

// A notDeltaError means that a file does not begin as a delta does. It matches bundle.ErrDamaged, as a file without
// the beginning of a bundle does: either may have been damaged there.
type notDeltaError struct{}

// Error names the remedy.
func (*notDeltaError) Error() string {
	return "not a delta of kkbundle: name the file that kkbundle delta or pack wrote; if this is it, its first bytes are damaged"
}

// Is makes the exit code that of a damaged bundle.
func (*notDeltaError) Is(target error) bool { return target == bundle.ErrDamaged }

func damaged(format string, args ...any) error { return &damageError{fmt.Sprintf(format, args...)} }

// An EncoderError means that another version of kkbundle compressed a bundle, so that its bytes cannot be made again
// here.
type EncoderError struct {
	Name        string // of the bundle
	Bundle, Own string // encoders of the bundle and of this program
}

// Error names the bundle and the remedy.
func (e *EncoderError) Error() string {
	return e.Name + " was compressed by another version of kkbundle, and this one cannot make the same bytes again: use the version that built it, or build it again"
}

// A Head describes a delta.
type Head struct {
	Version   int               `json:"version"`
	Requires  []string          `json:"requires"`
	Old       digest.Digest     `json:"old"` // OLD's identity; "" in a pack
	New       digest.Digest     `json:"new"` // NEW's identity
	Encoder   string            `json:"encoder"`
	FrameSize int               `json:"frameSize"`
	Size      int64             `json:"size"` // bytes of NEW
	SHA256    string            `json:"sha256"`
	Base      int64             `json:"base"`
	Store     int64             `json:"store"`
	Content   int64             `json:"content"`
	Sections  [numSection]int64 `json:"sections"`
}

func (h *Head) check() error {
	if h.Version != 1 || slices.ContainsFunc(h.Requires, func(name string) bool { return name != featureCode }) {
		return fmt.Errorf("the delta has version %d and needs %q: use a newer kkbundle", h.Version, h.Requires)
	}
	if err := h.New.Validate(); err != nil || h.Old != "" && h.Old.Validate() != nil {
		return damaged("an identity in its head is not a digest")
	}
	if sum, err := hex.DecodeString(h.SHA256); err != nil || len(sum) != sha256.Size {
		return damaged("the checksum in its head is not a sha256")
	}
	for _, n := range []int64{h.Size, h.Base, h.Store, h.Content, h.Sections[0], h.Sections[1], h.Sections[2]} {
		if n < 0 || n > maxSize {
			return damaged("a size in its head is %d", n)
		}
	}
	if h.Base > h.Store {
		return damaged("its store is smaller than its base")
	}
	return nil
}

// takes returns how many bytes of the store all blobs together may take. Without a bound, a few bytes would be worth
// years of gzip.
func (h *Head) takes() int64 { return blobRatio*h.Store + freeBlobs }

// lastKind returns the last kind of entries that the delta may have.
func (h *Head) lastKind() kind {
	if slices.Contains(h.Requires, featureCode) {
		return kindCode
	}
	return kindEdits
}

// A file is an opened delta.
type file struct {
	Head
	name  string // in errors
	src   io.ReaderAt
	start int64 // of the first section
	close func() error
	lent  *bundle.From // has the blobs of a listing, while the delta is proved
}

// openFile opens the delta at path and reads its head. Close it afterwards.
func openFile(path string) (*file, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := src.Stat()
	if err == nil {
		var f *file
		if f, err = parse(src, info.Size()); err == nil {
			f.close = src.Close
			return f, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", path, errors.Join(err, src.Close()))
}

// Check compares the delta at path with its checksum and returns its head.
func Check(path string) (Head, error) {
	f, err := openFile(path)
	if err != nil {
		return Head{}, err
	}
	if err := f.verify(); err != nil {
		return Head{}, errors.Join(fmt.Errorf("%s: %w", path, err), f.close())
	}
	return f.Head, f.close()
}

// ReadHead returns the head of the delta at path. It does not read the rest.
func ReadHead(path string) (Head, error) {
	f, err := openFile(path)
	if err != nil {
		return Head{}, err
	}
	return f.Head, f.close()
}

// ParseHead is ReadHead for a delta of size bytes in any place.
func ParseHead(src io.ReaderAt, size int64) (Head, error) {
	f, err := parse(src, size)
	if err != nil {
		return Head{}, err
	}
	return f.Head, nil
}

// Scratch returns the bytes of temporary files for opening the result.
func (h *Head) Scratch() int64 { return h.Store + h.Content }

// parse reads the head of a delta of size bytes.
func parse(src io.ReaderAt, size int64) (*file, error) {
	fixed := make([]byte, len(magic)+4)
	if _, err := src.ReadAt(fixed, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.HasPrefix(fixed, []byte(magic)) {
		return nil, &notDeltaError{}
	}
	n := int64(binary.LittleEndian.Uint32(fixed[len(magic):]))
	f := &file{src: src, start: int64(len(fixed)) + n}
	if n > maxHead || f.start > size {
		return nil, damaged("it is cut off in its head")
	}
	text := make([]byte, n)
	if _, err := src.ReadAt(text, int64(len(fixed))); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &f.Head); err != nil {
		return nil, damaged("its head cannot be read: %s", err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	if want := f.start + f.Sections[0] + f.Sections[1] + f.Sections[2] + sha256.Size; size != want {
		return nil, damaged("it has %d bytes; %d are expected", size, want)
	}
	return f, nil
}

// verify compares the file with its checksum.
func (f *file) verify() error {
	end := f.start + f.Sections[0] + f.Sections[1] + f.Sections[2]
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f.src, 0, end)); err != nil {
		return err
	}
	want := make([]byte, sha256.Size)
	if _, err := f.src.ReadAt(want, end); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return damaged("its checksum does not match")
	}
	return nil
}

// section returns a reader of the bytes of a section.
func (f *file) section(number int) *io.SectionReader {
	at := f.start
	for _, n := range f.Sections[:number] {
		at += n
	}
	return io.NewSectionReader(f.src, at, f.Sections[number])
}

// A scanner reads numbers and texts. The first error stays.
type scanner struct {
	in  *bufio.Reader
	err error
}

// unpacked returns a scanner of a section that is a zstd frame, and a function that frees it.
func (f *file) unpacked(number int) (*scanner, func(), error) {
	dec, err := zstd.NewReader(f.section(number), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, err
	}
	return &scanner{in: bufio.NewReaderSize(dec, 64<<10)}, dec.Close, nil
}

func (s *scanner) fail(err error) {
	if s.err == nil && err != nil {
		s.err = damaged("a section ends early or is malformed (%s)", err)
	}
}

// number reads a varint of at most limit.
func (s *scanner) number(limit int64) int64 {
	if s.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(s.in)
	if err == nil && v > uint64(limit) {
		err = fmt.Errorf("%d is more than %d", v, limit)
	}
	s.fail(err)
	if s.err != nil {
		return 0
	}
	return int64(v)
}

// signed reads a zigzag-coded varint.
func (s *scanner) signed() int64 {
	if s.err != nil {
		return 0
	}
	v, err := binary.ReadVarint(s.in)
	s.fail(err)
	if v > maxSize || v < -maxSize {
		s.fail(fmt.Errorf("%d is too large", v))
	}
	if s.err != nil {
		return 0
	}
	return v
}

func (s *scanner) bytes(n int64) []byte {
	if s.err != nil {
		return nil
	}
	b := make([]byte, n)
	_, err := io.ReadFull(s.in, b)
	s.fail(err)
	return b
}

func (s *scanner) text() []byte { return s.bytes(s.number(maxText)) }

// digest reads a sha256.
func (s *scanner) digest() digest.Digest {
	b := s.bytes(sha256.Size)
	if s.err != nil {
		return ""
	}
	return digest.NewDigestFromBytes(digest.SHA256, b)
}

// end returns the first error, or one if the section goes on.
func (s *scanner) end() error {
	if s.err != nil {
		return s.err
	}
	switch _, err := s.in.ReadByte(); {
	case err == nil:
		return damaged("a section has bytes after its end")
	case !errors.Is(err, io.EOF):
		s.fail(err)
	}
	return s.err
}

// A span is a range of bytes.
type span struct{ at, size int64 }

// inside reports whether s lies in the first limit bytes.
func (s span) inside(limit int64) bool {
	return s.at >= 0 && s.size >= 0 && s.at <= limit && s.size <= limit-s.at
}
