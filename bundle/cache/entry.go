package cache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// An entry's file holds the blob's frames (or a small blob uncompressed), their table of 12 bytes each as in the seek
// table, and the trailer: size (8), number of frames (4), magic (8), CRC-32C of everything before (4).
const (
	entryMagic   = "kkcache\x01"
	entryTrailer = 8 + 4 + 8 + 4
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // built once by the package, not per call

func appendTrailer(b []byte, size int64, frames int) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = binary.LittleEndian.AppendUint32(b, uint32(frames))
	return append(b, entryMagic...)
}

// A entry is an open file of the cache whose table and trailer agree with its length.
type entry struct {
	site
	sum   format.Sum
	f     *os.File
	info  fs.FileInfo
	size  int64 // size of the blob
	data  int64 // bytes of frames, or of the small blob
	table []byte
	tail  []byte // table and trailer, as in the file
}

// Close implements format.Frames.
func (e *entry) Close() error { return e.f.Close() }

// BlobSize implements format.Frames.
func (e *entry) BlobSize() int64 { return e.size }

// Len implements format.Frames.
func (e *entry) Len() int64 { return e.data }

// SeekEntries implements format.Frames.
func (e *entry) SeekEntries() []byte { return e.table }

func (e *entry) frames() int { return len(e.table) / format.SeekEntry }

func (e *entry) frame(i int) format.FrameInfo {
	return format.ParseEntry(e.table[i*format.SeekEntry:])
}

func (e *entry) damaged(format string, args ...any) error {
	return &EntryError{
		Digest: e.sum.Digest(), Path: e.path, Reason: fmt.Sprintf(format, args...), site: e.site,
		file: e.info,
	}
}

// readAt fails with a *EntryError. The file existed and had the right length, so the disk failed or another program
// wrote to the file; the remedy is to fetch the blob again.
func (e *entry) readAt(b []byte, off int64) error {
	if _, err := e.f.ReadAt(b, off); err != nil {
		return e.damaged("cannot be read: %v", withoutPath(err))
	}
	return nil
}

// withoutPath returns the cause of a file system error. The caller prints the path.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// entry opens a blob's file and records the use. If this cache's encoder has none, it is that of another encoder.
func (c *Cache) entry(s format.Sum) (*entry, error) {
	e, err := c.entryIn(c.dir, s, c.enc.FrameSize)
	for _, dir := range c.others {
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		e, err = c.entryIn(dir, s, 0)
	}
	return e, err
}

// isOwn reports whether this cache's encoder made an entry. Small blobs are the same for all encoders.
func (c *Cache) isOwn(e *entry) bool { return e.path == c.path(e.sum) || e.frames() == 0 }

// entryIn opens a blob's file of one encoder and records the use.
func (c *Cache) entryIn(dir string, s format.Sum, frameSize int) (*entry, error) {
	e, err := openEntry(site{c.root, entryPath(dir, s)}, s, frameSize)
	if err != nil {
		return nil, err
	}
	if err := c.use(e); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// openEntry opens an entry of an encoder with that frame size; 0 is unknown. Every problem except a missing file is a
// *EntryError.
func openEntry(site site, s format.Sum, frameSize int) (*entry, error) {
	e := &entry{site: site, sum: s}
	var err error
	// Without O_NONBLOCK, opening a pipe in place of the file would block for ever.
	if e.f, err = os.OpenFile(site.path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err != nil {
		info, statErr := os.Lstat(site.path)
		if statErr != nil {
			return nil, statErr
		}
		e.info = info
		return nil, e.damaged("cannot be opened: %v", withoutPath(err))
	}
	if err := e.load(frameSize); err != nil {
		return nil, errors.Join(err, e.f.Close())
	}
	return e, nil
}

func (e *entry) load(frameSize int) error {
	var err error
	if e.info, err = e.f.Stat(); err != nil {
		return err
	}
	if !e.info.Mode().IsRegular() {
		return e.damaged("not a regular file")
	}
	length := e.info.Size()
	trailer := make([]byte, entryTrailer)
	if length < entryTrailer {
		return e.damaged("truncated")
	}
	if err := e.readAt(trailer, length-entryTrailer); err != nil {
		return err
	}
	e.size = int64(binary.LittleEndian.Uint64(trailer))
	frames := int64(binary.LittleEndian.Uint32(trailer[8:]))
	e.data = length - entryTrailer - frames*format.SeekEntry
	if string(trailer[12:20]) != entryMagic || e.size < 0 || e.size > format.MaxSize || frames > format.MaxFrames ||
		e.data < 0 {
		return e.damaged("invalid trailer")
	}
	e.tail = make([]byte, frames*format.SeekEntry+entryTrailer)
	if err := e.readAt(e.tail, e.data); err != nil {
		return err
	}
	e.table = e.tail[:frames*format.SeekEntry]
	return e.check(frameSize)
}

// check compares the table with the sizes.
func (e *entry) check(frameSize int) error {
	if frameSize == 0 {
		frameSize = int(e.frameSizeOf())
		if frameSize < format.MinFrameSize || frameSize > format.MaxFrameSize {
			return e.damaged("invalid frame size")
		}
	}
	if e.frames() == 0 {
		if e.size > format.SmallBlob || e.size != e.data {
			return e.damaged("%d bytes long instead of %d", e.data, e.size)
		}
		return nil
	}
	rest, data := e.size, int64(0)
	for i := range e.frames() {
		f, want := e.frame(i), min(rest, int64(frameSize))
		if int64(f.Size) != want || want == 0 || int64(f.Len) > format.MaxFrameLen(want) {
			return e.damaged("invalid frame table")
		}
		rest, data = rest-want, data+int64(f.Len)
	}
	if rest != 0 || data != e.data || e.size <= format.SmallBlob {
		return e.damaged("invalid frame table")
	}
	return nil
}

// CopyTo copies the frames, or the small blob, to w and checks the checksum of the whole file. It writes one half of
// buf while it reads into the other.
func (e *entry) CopyTo(ctx context.Context, w io.Writer, buf []byte) error {
	inner, stop := context.WithCancel(ctx)
	full, empty := make(chan []byte), make(chan []byte, 2)
	half := len(buf) / 2
	empty <- buf[:half:half]
	empty <- buf[half:]
	read := make(chan error, 1)
	go func() {
		defer close(full)
		read <- e.readTo(inner, full, empty)
	}()
	var err error
	for b := range full {
		if _, err = w.Write(b); err != nil {
			break
		}
		empty <- b[:cap(b)]
	}
	stop()
	return cmp.Or(err, <-read)
}

// readTo reads the file into buffers from empty, checks it, and sends the buffers to full.
func (e *entry) readTo(ctx context.Context, full chan<- []byte, empty <-chan []byte) error {
	crc := uint32(0)
	for at := int64(0); at < e.data; {
		var buf []byte
		select {
		case buf = <-empty:
		case <-ctx.Done():
			return ctx.Err()
		}
		n := min(int64(len(buf)), e.data-at)
		if err := e.readAt(buf[:n], at); err != nil {
			return err
		}
		crc = crc32.Update(crc, castagnoli(), buf[:n])
		select {
		case full <- buf[:n]:
		case <-ctx.Done():
			return ctx.Err()
		}
		at += n
	}
	return e.checkSum(crc)
}

// checkSum completes the checksum of the data with table and trailer and compares it.
func (e *entry) checkSum(crc uint32) error {
	end := len(e.tail) - 4
	crc = crc32.Update(crc, castagnoli(), e.tail[:end])
	if crc != binary.LittleEndian.Uint32(e.tail[end:]) {
		return e.damaged("wrong checksum")
	}
	return nil
}

// stream decodes the entry piece by piece, and closes it at the end.
func (e *entry) stream(ctx context.Context, dec *zstd.Decoder) io.ReadCloser {
	r := e.content(ctx, dec)
	r.End = e.Close
	return r
}

// content decodes the entry piece by piece. The entry stays open.
func (e *entry) content(ctx context.Context, dec *zstd.Decoder) *format.PieceReader {
	var crc uint32
	var at int64
	i := 0
	buf, out := []byte(nil), []byte(nil)
	load := func() ([]byte, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if at >= e.data {
			return nil, io.EOF
		}
		n, size := e.data, e.size
		if e.frames() > 0 {
			n, size = int64(e.frame(i).Len), int64(e.frame(i).Size)
		}
		if int64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if err := e.readAt(buf, at); err != nil {
			return nil, err
		}
		crc = crc32.Update(crc, castagnoli(), buf)
		at += n
		if at == e.data {
			if err := e.checkSum(crc); err != nil {
				return nil, err
			}
		}
		if e.frames() == 0 {
			return buf, nil
		}
		i++
		var err error
		if out, err = format.DecodeFrame(dec, buf, out, size); err != nil {
			return nil, e.damaged("%v", err)
		}
		return out, nil
	}
	return &format.PieceReader{Load: load}
}

// Section returns the frames where they can be read at any time.
func (e *entry) Section() *io.SectionReader {
	return io.NewSectionReader(namedFile(e.path), 0, e.data)
}

// A namedFile is opened for each read, so that thousands of them need no descriptors.
type namedFile string

// ReadAt reads from the file of that name.
func (n namedFile) ReadAt(b []byte, off int64) (int, error) {
	f, err := os.Open(string(n))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b, off)
}
