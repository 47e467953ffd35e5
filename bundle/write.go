package bundle

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// WriteOptions configure Write and Create. The zero value is valid.
type WriteOptions struct {
	// PartSize, if not 0, makes Create write the bundle in parts of that many bytes; the last may be smaller.
	PartSize int64
	// Recipients, if any, make the output an age file around the bundle, encrypted to each of them.
	Recipients []age.Recipient
	// Want, if not "", is the sha256 that the bundle's own bytes must have. If they have another, writing fails at
	// its end.
	Want digest.Digest
	// Progress, if not nil, receives the bytes of the bundle written so far, and their maximal total.
	Progress func(done, total int64)
}

// A Summary describes the written bundle.
type Summary struct {
	Digest  digest.Digest // the bundle's identity: the sha256 of its index.json
	Size    int64         // bytes written: of the bundle, or of the age file around it
	Blobs   int
	Content int64 // bytes of all blobs, uncompressed
	Parts   int   // number of parts written; 0 for one file
}

// Create writes the bundle to path: under another name in the same directory first, synced, then renamed. On an error,
// or when ctx ends, nothing is left behind and an existing file at path is untouched. The same Index and level give the
// same bytes, whatever else src holds.
//
// With a PartSize the files are path.001, path.002 and so on, at most 999, and path.parts.json, which is written last:
// without it there is no bundle. If a bundle in the other form, one file or parts, is at path, nothing is written: see
// parts.CheckTarget.
func Create(ctx context.Context, path string, src Source, x Index, o WriteOptions) (Summary, error) {
	if o.PartSize > 0 {
		s, err := createParts(ctx, path, src, x, o)
		if err != nil {
			return Summary{}, describe(ctx, path, src, x, err)
		}
		return s, nil
	}
	if err := parts.CheckTarget(path, false); err != nil {
		return Summary{}, fmt.Errorf("write bundle %s: %w", path, err)
	}
	f, err := createTemp(path)
	if err != nil {
		return Summary{}, fmt.Errorf("write bundle %s: %w", path, err)
	}
	s, err := Write(ctx, &disk.SteadyFile{File: f}, src, x, o)
	if err == nil {
		err = f.Truncate(s.Size) // a blob that came ahead may have been written behind the end
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path) // before Close, which unlocks the file: another run would remove it
	}
	if err != nil {
		return Summary{}, errors.Join(describe(ctx, path, src, x, err), f.Close(), os.Remove(f.Name()))
	}
	return s, errors.Join(f.Close(), disk.SyncDir(filepath.Dir(path)))
}

const tempSuffix = ".tmp"

// createTemp creates a locked file next to path. It first removes temporary files of killed processes for path or its
// parts, since they may be as large as the bundle.
func createTemp(path string) (*os.File, error) {
	if err := sweepTemps(path); err != nil {
		return nil, err
	}
	return createTempFile(path)
}

// createTempFile creates a locked file next to path, with permissions according to the umask, unlike os.CreateTemp.
func createTempFile(path string) (*os.File, error) {
	return disk.CreateLocked(func() (*os.File, error) {
		return os.OpenFile(tempName(path), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	})
}

// tempName returns a new temporary name for path.
func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text()[:8]+tempSuffix)
}

// sweepTemps removes createTempFile's files for path or its parts that no process has locked.
func sweepTemps(path string) error {
	prefix := "." + filepath.Base(path) + "."
	return disk.Sweep(filepath.Dir(path), func(f fs.FileInfo) bool {
		return strings.HasPrefix(f.Name(), prefix) && strings.HasSuffix(f.Name(), tempSuffix)
	})
}

// describe adds the bundle's largest size to an error about a full disk. Content that is not in the cache may
// compress, so that less may do.
func describe(ctx context.Context, path string, src Source, x Index, err error) error {
	if disk.IsFull(err) {
		if need, sizeErr := Estimate(context.WithoutCancel(ctx), src, x); sizeErr == nil {
			return fmt.Errorf("write bundle %s: the disk is full; the bundle takes at most %d MiB there: %w", path,
				need>>20+1, err)
		}
	}
	if errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("write bundle %s: the file is too large for the file system; write the bundle in smaller parts: %w", path, err)
	}
	return fmt.Errorf("write bundle %s: %w", path, err)
}

// Write writes the bundle of x to w. Every blob must be in src. The error lists all missing blobs as *MissingError, and
// a damaged copy as *cache.EntryError.
func Write(ctx context.Context, w io.Writer, src Source, x Index, o WriteOptions) (Summary, error) {
	p, err := newPlan(ctx, src, x)
	if err != nil {
		return Summary{}, err
	}
	s, err := p.write(ctx, w, src, o)
	if c, ok := src.(settler); ok {
		err = c.settle(err)
	}
	if err != nil {
		return Summary{}, err
	}
	return s, nil
}

// Estimate returns the most bytes that Create will write for x. Every blob must be in src.
func Estimate(ctx context.Context, src Source, x Index) (int64, error) {
	p, err := newPlan(ctx, src, x)
	if err != nil {
		return 0, err
	}
	return p.most(ctx, src)
}

// CheckDirectory returns an error if no bundle can hold blobs of these sizes, -1 for an unknown one, because
// kkbundle.json would be too large: above about 540,000 blobs. It is for checks before anything is downloaded. Create
// checks again, because positions in the file, which are not known yet, count too.
func CheckDirectory(sizes iter.Seq[int64]) error {
	n, blobs := 0, 0
	for size := range sizes {
		n, blobs = n+format.MinBlobRecord+len(strconv.FormatInt(max(size, 0), 10))-1, blobs+1
	}
	n += blobs * likelyPosition
	if n > format.MaxIndexSize {
		return fmt.Errorf("the bundle would have %d blobs, and their directory %d bytes of at most %d: split the content into several bundles", blobs, n, format.MaxIndexSize)
	}
	return nil
}

// likelyPosition is the number of digits of a blob's position beyond the two of the shortest, where there are many.
const likelyPosition = 5

// A plan is everything about a bundle except the contents of its blobs.
type plan struct {
	index     []byte
	directory []byte
	layout    format.Layout
}

func newPlan(ctx context.Context, src Source, x Index) (*plan, error) {
	index, err := x.Marshal()
	if err != nil {
		return nil, err
	}
	found := problems{known: make(map[format.Sum]bool)}
	w := &walk{src: blobsOf{src}, report: found.report}
	if err := w.run(ctx, x.Items); err != nil {
		return nil, err
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	p := &plan{index: index}
	p.layout = format.Layout{FrameSize: src.Encoding().FrameSize, IndexSize: int64(len(index)), Blobs: w.order()}
	if frames := p.layout.Put(); frames > format.MaxFrames {
		return nil, fmt.Errorf("the bundle would have %d frames; at most %d are allowed: split the content into several bundles", frames, format.MaxFrames)
	}
	return p, p.addDirectory(src.Encoding())
}

// addDirectory builds the directory of the layout's blobs, whose positions are known.
func (p *plan) addDirectory(enc *format.Encoder) (err error) {
	byDigest := slices.SortedFunc(slices.Values(p.layout.Blobs),
		func(a, b format.Blob) int { return format.CompareSums(a.Sum, b.Sum) })
	d := format.Directory{Encoder: enc.ID, FrameSize: enc.FrameSize, Blobs: byDigest}
	p.directory, err = d.Marshal()
	p.layout.DirectorySize = int64(len(p.directory))
	return err
}

// most adds up the sizes of existing frames, and of the others as if incompressible.
func (p *plan) most(ctx context.Context, src Source) (int64, error) {
	total, frames := int64(0), 0
	for s := range p.layout.Segments() {
		frames += s.Count
		if s.Kind != format.SegmentBlob {
			total += format.MaxFrameLen(s.Size)
			continue
		}
		e, err := src.Frames(ctx, p.layout.Blobs[s.Blob].Sum.Digest())
		if err != nil {
			return 0, err
		}
		total += e.Len()
		if err := e.Close(); err != nil {
			return 0, err
		}
	}
	return total + format.SeekHeader + int64(frames)*format.SeekEntry + format.SeekFooter, nil
}

// write writes the planned bundle.
func (p *plan) write(ctx context.Context, w io.Writer, src Source, o WriteOptions) (Summary, error) {
	counted, sum256 := &counter{w: w}, sha256.New()
	out, err := o.output(counted)
	if err != nil {
		return Summary{}, err
	}
	defer out.Stop()
	content := io.Writer(out)
	if o.Want != "" {
		content = io.MultiWriter(out, sum256)
	}
	bw := &bundleWriter{plan: p, src: src, w: bufio.NewWriterSize(content, 128<<10), buf: make([]byte, 1<<20)}
	if o.Progress != nil {
		most, err := p.most(ctx, src)
		if err != nil {
			return Summary{}, err
		}
		bw.progress = func() { o.Progress(bw.off, most) }
	}
	if s, ok := src.(*Incoming); ok {
		if f, ok := w.(*disk.SteadyFile); ok && s.Temporary() && len(o.Recipients) == 0 && o.Want == "" {
			bw.file, bw.counted, bw.places = f, counted, newPlaces(ctx, f, p, s)
			defer s.place(bw.places)() // after the fetches, which start's function waits for
		}
		defer s.start(ctx, p.layout.Blobs)()
	}
	for s := range p.layout.Segments() {
		if err := bw.segment(ctx, s); err != nil {
			return Summary{}, err
		}
	}
	if err := bw.finish(); err != nil {
		return Summary{}, err
	}
	if got := digest.NewDigest(digest.SHA256, sum256); o.Want != "" && got != o.Want {
		return Summary{}, fmt.Errorf("the bundle written has %s; %s was expected", got, o.Want)
	}
	if err := out.Finish(); err != nil {
		return Summary{}, err
	}
	sum := Summary{Digest: digest.FromBytes(p.index), Size: counted.n, Blobs: len(p.layout.Blobs)}
	for _, b := range p.layout.Blobs {
		sum.Content += b.Size
	}
	return sum, nil
}

// A bundleWriter turns segments into bytes.
type bundleWriter struct {
	*plan
	src      Source
	w        *bufio.Writer
	off      int64
	entries  []byte // of the seek table
	glue     []byte
	buf      []byte
	progress func()
	refer    func(frames *io.SectionReader) error // if not nil, takes frames that stay where they are; see Compose

	places  *places // nil unless blobs that arrive are written to their places in file
	file    *disk.SteadyFile
	counted *counter
}

func (w *bundleWriter) segment(ctx context.Context, s format.Segment) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.places != nil {
		w.places.reached(s.First, w.off)
	}
	var err error
	switch s.Kind {
	case format.SegmentIndex:
		err = w.frame(w.index)
	case format.SegmentDirectory:
		err = w.frame(w.directory)
	case format.SegmentBlob:
		err = w.blob(ctx, w.layout.Blobs[s.Blob])
	case format.SegmentGlue:
		err = w.glueFrame(ctx, s)
	}
	if err == nil && w.progress != nil {
		w.progress()
	}
	return err
}

// Write passes frames on and counts them, for CopyTo.
func (w *bundleWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.off += int64(n)
	if err == nil && w.progress != nil {
		w.progress()
	}
	return n, err
}

// skip goes on behind frames that are at their place in the file.
func (w *bundleWriter) skip(n int64) error {
	if err := w.w.Flush(); err != nil {
		return err
	}
	w.off += n
	w.counted.n += n
	return w.file.Skip(n)
}

func (w *bundleWriter) frame(content []byte) error {
	frame := w.src.Encoding().AppendFrame(nil, content)
	sum := binary.LittleEndian.Uint32(frame[len(frame)-4:])
	w.entries = format.AppendEntry(w.entries, format.FrameInfo{
		Len: uint32(len(frame)), Size: uint32(len(content)),
		Checksum: sum,
	})
	_, err := w.Write(frame)
	return err
}

// blob copies the frames of a blob unchanged from the source.
func (w *bundleWriter) blob(ctx context.Context, b format.Blob) (err error) {
	e, err := w.src.Frames(ctx, b.Sum.Digest())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if e.BlobSize() != b.Size {
		return fmt.Errorf("the size of blob %s changed while the bundle was written", b.Sum.Digest())
	}
	if at, ok := e.(placed); ok && w.refer != nil {
		err = w.refer(at.Section())
		w.off += e.Len()
	} else {
		err = e.CopyTo(ctx, w, w.buf)
	}
	if err != nil {
		return err
	}
	w.entries = append(w.entries, e.SeekEntries()...)
	return nil
}

func (w *bundleWriter) glueFrame(ctx context.Context, s format.Segment) (err error) {
	w.glue, err = w.appendGlue(w.glue[:0], s,
		func(d format.Sum) ([]byte, error) { return w.src.ReadBlob(ctx, d.Digest(), format.SmallBlob) })
	if err != nil {
		return err
	}
	return w.frame(w.glue)
}

// appendGlue appends the content of a glue frame to an empty dst. read provides small blobs.
func (p *plan) appendGlue(dst []byte, s format.Segment, read func(format.Sum) ([]byte, error)) ([]byte, error) {
	for _, u := range s.Units {
		h, err := p.layout.Header(u)
		if err != nil {
			return dst, err
		}
		dst = append(dst, h...)
		if b := unitBlob(&p.layout, u); b != nil && b.Size > 0 {
			content, err := read(b.Sum)
			if err != nil {
				return dst, err
			}
			if int64(len(content)) != b.Size {
				return dst, fmt.Errorf("blob %s changed while it was written", b.Sum.Digest())
			}
			dst = append(dst, content...)
		}
		dst = append(dst, make([]byte, u.At+u.Size-len(dst))...)
	}
	return dst, nil
}

// unitBlob returns the small blob that lies in u, or nil.
func unitBlob(l *format.Layout, u format.Unit) *format.Blob {
	if u.Kind != format.UnitBlob || !l.Blobs[u.Blob].Small() {
		return nil
	}
	return &l.Blobs[u.Blob]
}

func (w *bundleWriter) finish() error {
	if _, err := w.Write(format.AppendSeekTable(nil, w.entries)); err != nil {
		return err
	}
	return w.w.Flush()
}
