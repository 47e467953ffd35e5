package format

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
)

// The entries of the tar, and its measures in bytes.
const (
	LayoutName    = "oci-layout"
	LayoutContent = `{"imageLayoutVersion":"1.0.0"}`
	IndexName     = "index.json"
	DirectoryName = "kkbundle.json"
	BlobPrefix    = "blobs/sha256/" // before the digits of a blob

	TarBlock  = 512
	maxOctal  = 1<<33 - 1    // the largest size that 11 octal digits hold
	TarEnding = 2 * TarBlock // zero bytes at the end
)

// A Place is the position of a blob: its first frame and, for a small blob, the offset in that frame's content.
type Place struct {
	Frame, At uint32
}

// A Blob is a blob of the directory.
type Blob struct {
	Sum  Sum
	Size int64
	Place
}

// Small reports whether the blob has no frames of its own.
func (b Blob) Small() bool { return b.Size <= SmallBlob }

// Pieces returns how many frames of its own the blob has.
func (b Blob) Pieces(frameSize int) int {
	if b.Small() {
		return 0
	}
	return int((b.Size + int64(frameSize) - 1) / int64(frameSize))
}

// MaxFramesLen returns the maximal total length of the blob's own frames.
func (b Blob) MaxFramesLen(frameSize int) int64 {
	return MaxFrameLen(b.Size) + 64*int64(b.Pieces(frameSize))
}

// StoredFramesLen returns the total length of the blob's own frames if none compresses. It is the most that an encoder
// makes.
func (b Blob) StoredFramesLen(frameSize int) int64 {
	whole, rest := b.Size/int64(frameSize), b.Size%int64(frameSize)
	n := whole * StoredLen(int64(frameSize))
	if rest > 0 {
		n += StoredLen(rest)
	}
	return n
}

// Frames are the frames of one large blob, as they go into a bundle.
type Frames interface {
	// BlobSize is the size of the blob, and Len that of its frames.
	BlobSize() int64
	Len() int64
	// SeekEntries returns the frames' entries of the seek table. It is called after CopyTo.
	SeekEntries() []byte
	// CopyTo copies the frames to w, using buf. It fails if they have changed since they were made.
	CopyTo(ctx context.Context, w io.Writer, buf []byte) error
	Close() error
}

// A Layout is the order of everything in a bundle. All sizes and positions follow from it. Writing, opening and
// verifying share it, so a bundle that deviates is refused.
type Layout struct {
	FrameSize     int
	IndexSize     int64
	DirectorySize int64
	Blobs         []Blob // in the order of the stream
}

// A UnitKind says which part of the tar a unit is.
type UnitKind uint8

// The kinds of units.
const (
	UnitLayout    UnitKind = iota // the whole entry oci-layout
	UnitIndex                     // the header of index.json
	UnitBlob                      // header and, for a small blob, content and padding
	UnitDirectory                 // the header of kkbundle.json
	unitZeros                     // padding after an entry whose content has its own frames; the end of the tar
)

// A Unit is an indivisible part of a glue frame.
type Unit struct {
	Kind UnitKind
	Blob int // index in Layout.Blobs
	At   int // offset in the frame's content
	Size int
}

// A SegmentKind is the kind of content in the frames of a segment.
type SegmentKind uint8

// The kinds of segments.
const (
	SegmentGlue SegmentKind = iota
	SegmentIndex
	SegmentBlob
	SegmentDirectory
)

// A Segment is one glue frame, one of the two JSON documents, or all pieces of one blob.
type Segment struct {
	Kind  SegmentKind
	First int    // number of its first frame
	Count int    // of frames
	Size  int64  // bytes of content
	Blob  int    // index in Layout.Blobs
	Units []Unit // of a glue frame; valid until the next segment
}

// Segments yields the bundle's frames in order.
func (l *Layout) Segments() iter.Seq[Segment] {
	return func(yield func(Segment) bool) {
		b := &layoutBuilder{yield: yield}
		b.unit(UnitLayout, 0, TarBlock+Padded(int64(len(LayoutContent))))
		b.unit(UnitIndex, 0, headerLen(l.IndexSize))
		b.own(SegmentIndex, 0, 1, l.IndexSize)
		for i, blob := range l.Blobs {
			if b.stop {
				return
			}
			if blob.Small() {
				b.unit(UnitBlob, i, headerLen(blob.Size)+Padded(blob.Size))
				continue
			}
			b.unit(UnitBlob, i, headerLen(blob.Size))
			b.own(SegmentBlob, i, blob.Pieces(l.FrameSize), blob.Size)
		}
		b.unit(UnitDirectory, 0, headerLen(l.DirectorySize))
		b.own(SegmentDirectory, 0, 1, l.DirectorySize)
		b.unit(unitZeros, 0, TarEnding)
		b.flush()
	}
}

type layoutBuilder struct {
	yield func(Segment) bool
	stop  bool
	next  int // number of the next frame
	glue  int // bytes in the glue frame being filled
	units []Unit
}

func (b *layoutBuilder) unit(kind UnitKind, blob int, size int64) {
	if size == 0 {
		return
	}
	if b.glue+int(size) > MaxGlue {
		b.flush()
	}
	b.units = append(b.units, Unit{Kind: kind, Blob: blob, At: b.glue, Size: int(size)})
	b.glue += int(size)
}

func (b *layoutBuilder) flush() {
	if b.glue == 0 {
		return
	}
	b.emit(Segment{Kind: SegmentGlue, Count: 1, Size: int64(b.glue), Units: b.units})
	b.units, b.glue = b.units[:0], 0
}

// own emits content with its own frames; its padding opens the next glue frame.
func (b *layoutBuilder) own(kind SegmentKind, blob, frames int, size int64) {
	b.flush()
	b.emit(Segment{Kind: kind, Count: frames, Size: size, Blob: blob})
	b.unit(unitZeros, blob, Padded(size)-size)
}

func (b *layoutBuilder) emit(s Segment) {
	s.First = b.next
	b.next += s.Count
	if !b.stop && !b.yield(s) {
		b.stop = true
	}
}

// contentAt returns the offset of a small blob's content in its frame.
func (u Unit) contentAt() int { return u.At + TarBlock }

// Put computes the position of each blob and returns the number of frames.
func (l *Layout) Put() int {
	frames := 0
	for s := range l.Segments() {
		frames = s.First + s.Count
		if s.Kind == SegmentBlob {
			l.Blobs[s.Blob].Place = Place{Frame: uint32(s.First)}
		}
		for _, u := range s.Units {
			if u.Kind == UnitBlob && l.Blobs[u.Blob].Small() {
				l.Blobs[u.Blob].Place = Place{Frame: uint32(s.First), At: uint32(u.contentAt())}
			}
		}
	}
	return frames
}

// Header returns the tar header at the start of a unit; nil for zeros.
func (l *Layout) Header(u Unit) ([]byte, error) {
	switch u.Kind {
	case UnitLayout:
		h, err := TarHeader(LayoutName, int64(len(LayoutContent)))
		return append(h, LayoutContent...), err
	case UnitIndex:
		return TarHeader(IndexName, l.IndexSize)
	case UnitDirectory:
		return TarHeader(DirectoryName, l.DirectorySize)
	case UnitBlob:
		b := l.Blobs[u.Blob]
		return TarHeader(BlobPrefix+b.Sum.Hex(), b.Size)
	default:
		return nil, nil
	}
}

// headerLen returns the length of TarHeader's result.
func headerLen(size int64) int64 {
	if size > maxOctal {
		return 3 * TarBlock
	}
	return TarBlock
}

// Padded rounds up to whole tar blocks.
func Padded(n int64) int64 { return (n + TarBlock - 1) / TarBlock * TarBlock }

// TarHeader returns the header of a regular file: ustar, and from 2^33 bytes on a pax record before it.
func TarHeader(name string, size int64) ([]byte, error) {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o444, Format: tar.FormatUSTAR}
	if size > maxOctal {
		h.Format = tar.FormatPAX
	}
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
		return nil, fmt.Errorf("tar header of %s: %w", name, err)
	}
	return b.Bytes(), nil
}
