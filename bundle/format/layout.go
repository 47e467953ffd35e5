package bundle

import (
	"archive/tar"
	"bytes"
	"fmt"
	"iter"
)

// Entries of the tar other than blobs.
const (
	layoutName    = "oci-layout"
	layoutContent = `{"imageLayoutVersion":"1.0.0"}`
	indexName     = "index.json"
	directoryName = "kkbundle.json"
	blobPrefix    = "blobs/sha256/"

	tarBlock  = 512
	maxOctal  = 1<<33 - 1 // the largest size that 11 octal digits hold
	tarEnding = 2 * tarBlock
)

// A place is the position of a blob: its first frame and, for a small blob, the offset in that frame's content.
type place struct {
	frame, at uint32
}

// A dirBlob is a blob of the directory.
type dirBlob struct {
	sum  sum
	size int64
	place
}

func (b dirBlob) small() bool { return b.size <= smallBlob }

// pieces returns how many frames of its own the blob has.
func (b dirBlob) pieces(frameSize int) int {
	if b.small() {
		return 0
	}
	return int((b.size + int64(frameSize) - 1) / int64(frameSize))
}

// A layout is the order of everything in a bundle. All sizes and positions follow from it. Writing, opening and
// verifying share it, so a bundle that deviates is refused.
type layout struct {
	frameSize     int
	indexSize     int64
	directorySize int64
	blobs         []dirBlob // in the order of the stream
}

type unitKind uint8

const (
	unitLayout    unitKind = iota // the whole entry oci-layout
	unitIndex                     // the header of index.json
	unitBlob                      // header and, for a small blob, content and padding
	unitDirectory                 // the header of kkbundle.json
	unitZeros                     // padding after an entry whose content has its own frames; the end of the tar
)

// A unit is an indivisible part of a glue frame.
type unit struct {
	kind unitKind
	blob int // index in layout.blobs
	at   int // offset in the frame's content
	size int
}

type segmentKind uint8

const (
	segmentGlue segmentKind = iota
	segmentIndex
	segmentBlob
	segmentDirectory
)

// A segment is one glue frame, one of the two JSON documents, or all pieces of one blob.
type segment struct {
	kind  segmentKind
	first int    // number of its first frame
	count int    // of frames
	size  int64  // bytes of content
	blob  int    // index in layout.blobs
	units []unit // of a glue frame; valid until the next segment
}

// segments yields the bundle's frames in order.
func (l *layout) segments() iter.Seq[segment] {
	return func(yield func(segment) bool) {
		b := &layoutBuilder{yield: yield}
		b.unit(unitLayout, 0, tarBlock+padded(int64(len(layoutContent))))
		b.unit(unitIndex, 0, headerLen(l.indexSize))
		b.own(segmentIndex, 0, 1, l.indexSize)
		for i, blob := range l.blobs {
			if b.stop {
				return
			}
			if blob.small() {
				b.unit(unitBlob, i, headerLen(blob.size)+padded(blob.size))
				continue
			}
			b.unit(unitBlob, i, headerLen(blob.size))
			b.own(segmentBlob, i, blob.pieces(l.frameSize), blob.size)
		}
		b.unit(unitDirectory, 0, headerLen(l.directorySize))
		b.own(segmentDirectory, 0, 1, l.directorySize)
		b.unit(unitZeros, 0, tarEnding)
		b.flush()
	}
}

type layoutBuilder struct {
	yield func(segment) bool
	stop  bool
	next  int // number of the next frame
	glue  int // bytes in the glue frame being filled
	units []unit
}

func (b *layoutBuilder) unit(kind unitKind, blob int, size int64) {
	if size == 0 {
		return
	}
	if b.glue+int(size) > maxGlue {
		b.flush()
	}
	b.units = append(b.units, unit{kind: kind, blob: blob, at: b.glue, size: int(size)})
	b.glue += int(size)
}

func (b *layoutBuilder) flush() {
	if b.glue == 0 {
		return
	}
	b.emit(segment{kind: segmentGlue, count: 1, size: int64(b.glue), units: b.units})
	b.units, b.glue = b.units[:0], 0
}

// own emits content with its own frames; its padding opens the next glue frame.
func (b *layoutBuilder) own(kind segmentKind, blob, frames int, size int64) {
	b.flush()
	b.emit(segment{kind: kind, count: frames, size: size, blob: blob})
	b.unit(unitZeros, blob, padded(size)-size)
}

func (b *layoutBuilder) emit(s segment) {
	s.first = b.next
	b.next += s.count
	if !b.stop && !b.yield(s) {
		b.stop = true
	}
}

// contentAt returns the offset of a small blob's content in its frame.
func (u unit) contentAt() int { return u.at + tarBlock }

// put computes the position of each blob and returns the number of frames.
func (l *layout) put() int {
	frames := 0
	for s := range l.segments() {
		frames = s.first + s.count
		if s.kind == segmentBlob {
			l.blobs[s.blob].place = place{frame: uint32(s.first)}
		}
		for _, u := range s.units {
			if u.kind == unitBlob && l.blobs[u.blob].small() {
				l.blobs[u.blob].place = place{frame: uint32(s.first), at: uint32(u.contentAt())}
			}
		}
	}
	return frames
}

// header returns the tar header at the start of a unit; nil for zeros.
func (l *layout) header(u unit) ([]byte, error) {
	switch u.kind {
	case unitLayout:
		h, err := tarHeader(layoutName, int64(len(layoutContent)))
		return append(h, layoutContent...), err
	case unitIndex:
		return tarHeader(indexName, l.indexSize)
	case unitDirectory:
		return tarHeader(directoryName, l.directorySize)
	case unitBlob:
		b := l.blobs[u.blob]
		return tarHeader(blobPrefix+b.sum.hex(), b.size)
	default:
		return nil, nil
	}
}

// headerLen returns the length of tarHeader's result.
func headerLen(size int64) int64 {
	if size > maxOctal {
		return 3 * tarBlock
	}
	return tarBlock
}

// padded rounds up to whole tar blocks.
func padded(n int64) int64 { return (n + tarBlock - 1) / tarBlock * tarBlock }

// tarHeader returns the header of a regular file: ustar, and from 2^33 bytes on a pax record before it.
func tarHeader(name string, size int64) ([]byte, error) {
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
