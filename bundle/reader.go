package bundle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/parts"
)

// tailRead is how much of a bundle's end Open reads at once: seek table and directory of some thousand blobs.
const tailRead = 256 << 10

// A Reader serves a bundle's content directly from its file. It is safe for concurrent use. Nothing in the file is
// trusted: a deviation from the format is a *DamageError before memory is allocated for it.
type Reader struct {
	Catalog
	directory
	r     io.ReaderAt
	close func() error
	parts *parts.Set // nil for one file
	size  int64
	// atHand means that r is files in clear, so that many small reads cost as little as a large one.
	atHand bool
	// encrypted is the age file around the bundle, nil if there is none; r reads its content.
	encrypted *agefile.File
	layout    format.Layout
	frames    []format.FrameInfo
	dec       *zstd.Decoder
	raw       sync.Pool // *[]byte for frames as in the file
	decoded   sync.Pool // *[]byte for their content
}

// Open opens the bundle at path: a file, or a bundle in parts. For parts, path is the name of any part, of parts.json,
// or NAME.kkb itself if there is no such file. The first and the last part must exist. Another missing part gives a
// *parts.Error when its bytes are needed. See Warnings. An encrypted bundle is an *EncryptedError; see OpenWith.
func Open(path string) (*Reader, error) { return OpenWith(path, nil) }

// OpenWith is Open for a bundle that may be encrypted: an age file around the bundle, which is decrypted where it is
// read. keys may be nil.
func OpenWith(path string, keys agefile.Keys) (*Reader, error) {
	r, err := open(path, keys)
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", path, err)
	}
	return r, nil
}

func open(path string, keys agefile.Keys) (*Reader, error) {
	if base, parts := parts.Locate(path); parts {
		return openInParts(base, keys)
	}
	f, err := parts.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	var r *Reader
	if err == nil {
		r, err = NewReaderWith(f, info.Size(), keys)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.close, r.atHand = f.Close, r.encrypted == nil
	return r, nil
}

func openInParts(base string, keys agefile.Keys) (*Reader, error) {
	set, err := parts.Open(base)
	if err != nil {
		return nil, err
	}
	r, err := NewReaderWith(set, set.Size, keys)
	if err != nil {
		return nil, errors.Join(set.Explain(err), set.Close())
	}
	r.close, r.atHand = set.Close, r.encrypted == nil
	return r, nil
}

// Warnings returns problems with the bundle's files that do not prevent reading: a missing parts.json or part. Verify
// fails for them.
func (r *Reader) Warnings() []string {
	if r.parts == nil {
		return nil
	}
	var all []string
	for _, err := range r.parts.Wrong() {
		all = append(all, err.Error())
	}
	return all
}

// NewReader opens a bundle of size bytes. It reads its end and its beginning, not the blobs, and keeps about 100 bytes
// per blob and frame.
func NewReader(src io.ReaderAt, size int64) (*Reader, error) { return NewReaderWith(src, size, nil) }

// NewReaderWith is NewReader for a bundle that may be encrypted. keys may be nil.
func NewReaderWith(src io.ReaderAt, size int64, keys agefile.Keys) (*Reader, error) {
	encrypted, length, err := agefile.Open(src, size, keys)
	if err != nil {
		return nil, err
	}
	dec, err := format.NewDecoder(max(2, runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("zstd decoder: %w", err)
	}
	r := &Reader{r: src, size: size, dec: dec, encrypted: encrypted}
	if encrypted != nil {
		r.r, r.size = encrypted, length
	}
	r.parts, _ = src.(*parts.Set)
	r.blobs = r
	r.raw.New = func() any { return new([]byte) }
	r.decoded.New = func() any { return new([]byte) }
	if err := r.load(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Reader) load() error {
	tail, err := r.readTail()
	if err != nil {
		return err
	}
	n := len(r.frames)
	data, err := r.decode(tail.frame(r.frames[n-2]), nil, r.frames[n-2])
	if err != nil {
		return &DamageError{Offset: r.frames[n-2].Off, Reason: "its directory", Err: err}
	}
	if r.dir, err = format.ParseDirectory(data); err != nil {
		if errors.Is(err, ErrUnsupported) {
			return err
		}
		return &DamageError{Offset: r.frames[n-2].Off, Reason: "its directory", Err: err}
	}
	if r.layout, err = layoutOf(r.dir, r.frames); err != nil {
		return err
	}
	return r.loadIndex()
}

// readTail reads the seek table and returns bytes that contain the directory's frame.
func (r *Reader) readTail() (section, error) {
	want := wholeTail(r, min(r.size, tailRead)) // the part before may be missing
	tail := section{off: r.size - want, b: make([]byte, want)}
	if err := r.readAt(tail.b, tail.off); err != nil {
		return section{}, err
	}
	length, err := format.SeekTableLen(tail.b[max(0, len(tail.b)-format.SeekFooter):], r.size)
	if err != nil {
		return section{}, err
	}
	start := r.size - length
	if tail, err = r.extend(tail, start); err != nil {
		return section{}, err
	}
	if r.frames, err = format.ParseSeekTable(tail.b[start-tail.off:], start); err != nil {
		return section{}, err
	}
	return r.extend(tail, r.frames[len(r.frames)-2].Off)
}

// A section is a range of the file in memory.
type section struct {
	off int64
	b   []byte
}

// extend makes the section begin at off or before.
func (r *Reader) extend(s section, off int64) (section, error) {
	if off >= s.off {
		return s, nil
	}
	more := section{off: off, b: make([]byte, s.off-off, s.off-off+int64(len(s.b)))}
	if err := r.readAt(more.b, off); err != nil {
		return section{}, err
	}
	more.b = append(more.b, s.b...)
	return more, nil
}

func (r *Reader) readAt(b []byte, off int64) error {
	n, err := r.r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return format.Damage(off+int64(n), "unexpected end of the file")
	}
	return fmt.Errorf("read %d bytes at byte %d of the bundle: %w", len(b), off, err)
}

// frame returns the bytes of a frame that lies in s.
func (s section) frame(f format.FrameInfo) []byte { return s.b[f.Off-s.off:][:f.Len] }

func (r *Reader) decode(b, buf []byte, f format.FrameInfo) ([]byte, error) {
	if sum := binary.LittleEndian.Uint32(b[len(b)-4:]); sum != f.Checksum {
		return nil, fmt.Errorf("the frame's checksum is %08x; the seek table says %08x", sum, f.Checksum)
	}
	return format.DecodeFrame(r.dec, b, buf, int64(f.Size))
}

// layoutOf derives every frame and position from the blobs' order and compares them.
func layoutOf(dir *format.Directory, frames []format.FrameInfo) (format.Layout, error) {
	n := len(frames)
	order := slices.Clone(dir.Blobs)
	slices.SortFunc(order, func(a, b format.Blob) int {
		if a.Frame != b.Frame {
			return int(a.Frame) - int(b.Frame)
		}
		return int(a.At) - int(b.At)
	})
	claimed := slices.Clone(order)
	layout := format.Layout{
		FrameSize: dir.FrameSize, IndexSize: int64(frames[1].Size), DirectorySize: int64(frames[n-2].Size),
		Blobs: order,
	}
	if err := format.CheckFrames(&layout, frames); err != nil {
		return layout, err
	}
	layout.Put()
	for i, b := range order {
		if b.Place != claimed[i].Place {
			return layout, &DamageError{Blob: b.Sum.Digest(), Offset: -1, Reason: fmt.Sprintf(
				"the directory places it in frame %d at %d instead of frame %d at %d", claimed[i].Frame, claimed[i].At,
				b.Frame, b.At)}
		}
	}
	return layout, nil
}

// loadIndex reads the first two frames.
func (r *Reader) loadIndex() error {
	head := section{b: make([]byte, r.frames[2].Off)}
	if err := r.readAt(head.b, 0); err != nil {
		return err
	}
	first, err := r.decode(head.frame(r.frames[0]), nil, r.frames[0])
	if err != nil {
		return &DamageError{Offset: 0, Reason: "its beginning", Err: err}
	}
	for s := range r.layout.Segments() {
		for _, u := range s.Units {
			if err := checkUnit(&r.layout, u, first); err != nil {
				return &DamageError{Offset: 0, Reason: "its beginning", Err: err}
			}
		}
		break
	}
	data, err := r.decode(head.frame(r.frames[1]), nil, r.frames[1])
	if err != nil {
		return &DamageError{Offset: r.frames[1].Off, Reason: format.IndexName, Err: err}
	}
	if r.index, err = ParseIndex(data); err != nil {
		return &DamageError{Offset: r.frames[1].Off, Reason: "its index", Err: err}
	}
	r.identity = digest.FromBytes(data)
	for _, it := range r.index.Items {
		if size, ok := r.Stat(it.Descriptor.Digest); !ok || size != it.Descriptor.Size {
			return &DamageError{
				Blob: it.Descriptor.Digest, Offset: -1,
				Reason: fmt.Sprintf("%s is not in the directory with its size", it),
			}
		}
	}
	return nil
}

// Size returns the bytes of the bundle, without its encryption.
func (r *Reader) Size() int64 { return r.size }

// A directory is the list of a bundle's blobs (kkbundle.json), which files and streams share.
type directory struct{ dir *format.Directory }

// Encoder names the bundle's encoder: library, version, level and options.
func (d directory) Encoder() string { return d.dir.Encoder }

// Blobs returns digest and size of every blob, sorted by digest.
func (d directory) Blobs() []ocispec.Descriptor {
	out := make([]ocispec.Descriptor, len(d.dir.Blobs))
	for i, b := range d.dir.Blobs {
		out[i] = ocispec.Descriptor{Digest: b.Sum.Digest(), Size: b.Size}
	}
	return out
}

// Stat reports whether the bundle holds a blob, and its size.
func (d directory) Stat(blob digest.Digest) (size int64, ok bool) {
	b, err := d.blobOf(blob)
	return b.Size, err == nil
}

func (d directory) blobOf(of digest.Digest) (format.Blob, error) {
	s, err := format.ParseDigest(of)
	if err != nil {
		return format.Blob{}, err
	}
	b, ok := d.find(s)
	if !ok {
		return b, fmt.Errorf("the bundle has no blob %s", of)
	}
	return b, nil
}

func (d directory) find(s format.Sum) (format.Blob, bool) {
	i, ok := slices.BinarySearchFunc(d.dir.Blobs, s, func(b format.Blob,
		s format.Sum,
	) int {
		return format.CompareSums(b.Sum, s)
	})
	if !ok {
		return format.Blob{}, false
	}
	return d.dir.Blobs[i], true
}

func (r *Reader) lookup(_ context.Context, s format.Sum) (int64, bool, error) {
	b, ok := r.find(s)
	return b.Size, ok, nil
}

// Close closes the file that Open opened. Streams still being read fail afterwards.
func (r *Reader) Close() error {
	if r.close == nil {
		return nil
	}
	return r.close()
}

func (r *Reader) read(ctx context.Context, s format.Sum, max int64) (data []byte, err error) {
	b, ok := r.find(s)
	if !ok {
		return nil, fmt.Errorf("the bundle has no blob %s", s.Digest())
	}
	if b.Size > max {
		return nil, fmt.Errorf("blob %s has %d bytes; at most %d were expected", s.Digest(), b.Size, max)
	}
	rc := r.stream(ctx, b, 0, true)
	defer func() { err = errors.Join(err, rc.Close()) }()
	data = make([]byte, b.Size)
	if _, err := io.ReadFull(rc, data); err != nil {
		return nil, err
	}
	if _, err := rc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return nil, err // nothing to read from an empty blob; only the check remains
	}
	return data, nil
}

// partAt returns the file name of the part that holds a byte, or "".
func (r *Reader) partAt(off int64) string {
	if r.parts == nil {
		return ""
	}
	if r.encrypted != nil && off >= 0 {
		off = r.encrypted.Place(off)
	}
	return r.parts.NameAt(off)
}

// wholeTail limits n bytes at the end of the content to those that can be read where an earlier part is missing.
func wholeTail(r *Reader, n int64) int64 {
	var last int64 // bytes that can be read
	switch {
	case r.parts == nil:
		return n
	case r.encrypted != nil:
		last = r.size - r.encrypted.LastPart()
	default:
		last = r.parts.LastSize()
	}
	return min(n, max(last, format.SeekFooter))
}

// Encrypted reports whether the bundle's file is an age file.
func (r *Reader) Encrypted() bool { return r.encrypted != nil }
