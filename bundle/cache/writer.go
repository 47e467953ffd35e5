package cache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A BlobWriter takes the bytes of one blob whose size and digest may be unknown so far. It is not safe for concurrent
// use. It is an alias of an interface literal, so that other packages can declare the same interface without importing
// this one.
//
// Commit keeps the blob if it has the promised size (-1: any) and digest ("": any), and returns both; otherwise it
// fails with a *MismatchError. Reset starts over at byte 0. Close without Commit keeps whole pieces for a later Begin
// under the same key. Close must be called, and is harmless after Commit.
type BlobWriter = interface {
	io.Writer
	Commit(ctx context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error)
	Reset() error
	Close() error
}

// Begin returns a writer for the blob that the caller knows as key, and the offset at which to continue: after the
// whole pieces left by an earlier writer under this key, which are checked and hashed again. If another writer holds
// the key, in any process, the new one starts at 0 in a file of its own, and the first to commit wins.
func (c *Cache) Begin(ctx context.Context, key string) (w BlobWriter, offset int64, err error) {
	f, err := c.lockPart(key)
	if err != nil {
		return nil, 0, c.failed("begin a blob in the cache", err)
	}
	cw := &writer{c: c, hash: sha256.New(), part: &partFile{use: &c.usage, f: f, find: c.placeOf(key)}}
	if err := cw.resume(ctx); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("continue a blob in the cache: %w", err), f.Close())
	}
	return cw, cw.size, nil
}

// A writer hashes its input, cuts it into pieces, and passes full pieces to goroutines, which compress them in
// parallel and append them to the part file in order. A goroutine waits only for its predecessor, so each ends by
// itself. Commit, Reset and Close wait for the last.
type writer struct {
	c     *Cache
	part  *partFile
	hash  hash.Hash
	size  int64
	piece []byte        // the piece being filled
	last  chan struct{} // closed when the last piece handed over is on disk; nil before the first
	done  bool
}

// A partFile is the unfinished entry. One goroutine at a time calls its methods, in the order of the pieces, except for
// err.
type partFile struct {
	use   *usage
	f     *os.File
	find  func() Place // called before the first frame is written
	place Place        // where the frames go instead; nil if they go to f
	end   int64
	crc   uint32
	table []byte

	mu  sync.Mutex
	err error
}

func (p *partFile) append(frame []byte, size int) {
	if p.failed() != nil {
		return
	}
	if p.end == 0 {
		p.place = p.find()
	}
	if err := p.write(frame); err != nil {
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		return
	}
	p.add(frame, size)
}

func (p *partFile) write(frame []byte) error {
	if p.place != nil {
		return p.place.Write(frame, p.end)
	}
	if _, err := p.f.WriteAt(frame, p.end); err != nil {
		return p.use.failed("write to the cache", err)
	}
	return nil
}

// Places are where in another file the frames of blobs go, and only there.
type Places interface {
	// Place returns the place of a blob, nil if there is none.
	Place(format.Sum) Place
}

// A Place is where the frames of one blob go.
type Place interface {
	// Write writes a frame at an offset from the start of the place.
	Write(frame []byte, at int64) error
	// Keep reports that the blob is whole: size bytes, in frames of n bytes with that table.
	Keep(size, n int64, table []byte)
}

// PlaceIn has blobs that are written from now on go to their places. The returned function ends that; no blob may be
// written then.
func (c *Cache) PlaceIn(p Places) (end func()) {
	c.places.Store(&p)
	return func() { c.places.Store(nil) }
}

// placeOf returns a function that returns the place of a blob, or nil.
func (c *Cache) placeOf(key string) func() Place {
	return func() Place {
		d, err := format.ParseDigest(digest.Digest(key))
		if p := c.places.Load(); p != nil && err == nil {
			return (*p).Place(d)
		}
		return nil
	}
}

// add records a frame that is in the file.
func (p *partFile) add(frame []byte, size int) {
	sum := binary.LittleEndian.Uint32(frame[len(frame)-4:])
	p.table = format.AppendEntry(p.table, format.FrameInfo{Len: uint32(len(frame)), Size: uint32(size), Checksum: sum})
	if p.place == nil {
		p.crc = crc32.Update(p.crc, castagnoli(), frame)
	}
	p.end += int64(len(frame))
}

func (p *partFile) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Write takes more of the blob. A disk error may show at a later Write or at Commit.
func (w *writer) Write(b []byte) (int, error) {
	if w.done {
		return 0, os.ErrClosed
	}
	total := len(b)
	for len(b) > 0 {
		if w.piece == nil {
			w.piece = (*w.c.pieces.Get().(*[]byte))[:0]
		}
		n := min(len(b), w.c.enc.FrameSize-len(w.piece))
		w.piece = append(w.piece, b[:n]...)
		w.hash.Write(b[:n])
		w.size += int64(n)
		b = b[n:]
		if len(w.piece) == w.c.enc.FrameSize {
			if err := w.part.failed(); err != nil {
				return total - len(b), err
			}
			w.handOver()
		}
	}
	return total, nil
}

// handOver starts compressing the current piece.
func (w *writer) handOver() {
	c, piece, before, done := w.c, w.piece, w.last, make(chan struct{})
	w.piece, w.last = nil, done
	c.slots <- struct{}{} // pieces that hold a slot wait only for earlier ones that hold one too
	go func() {
		frame := c.enc.AppendFrame((*c.frames.Get().(*[]byte))[:0], piece)
		if before != nil {
			<-before
		}
		w.part.append(frame, len(piece))
		c.frames.Put(&frame)
		c.pieces.Put(&piece)
		<-c.slots
		close(done)
	}()
}

// settle waits until every piece handed over is on disk.
func (w *writer) settle() error {
	if w.last != nil {
		<-w.last
		w.last = nil
	}
	return w.part.failed()
}

func (w *writer) dropPiece() {
	if piece := w.piece; piece != nil {
		w.piece = nil
		w.c.pieces.Put(&piece) // not &w.piece: the pool's next user must not get a field that this writer still uses
	}
}

// Reset discards everything written.
func (w *writer) Reset() error {
	if w.done {
		return os.ErrClosed
	}
	_ = w.settle() // an error concerns only the discarded bytes
	w.dropPiece()
	w.hash.Reset()
	w.size = 0
	w.part = &partFile{use: w.part.use, f: w.part.f, find: w.part.find}
	if err := w.part.f.Truncate(0); err != nil {
		return fmt.Errorf("restart a blob: %w", err)
	}
	return nil
}

// Close releases the part file for a later Begin.
func (w *writer) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	_ = w.settle() // Write and Commit return its error; what is on the disk can be continued
	w.dropPiece()
	var err error
	if isOwn(w.part.f.Name()) || w.part.end == 0 {
		err = os.Remove(w.part.f.Name())
	}
	// Unlock explicitly: a child process being started may hold a copy of the file, and with it the lock.
	return errors.Join(err, unix.Flock(int(w.part.f.Fd()), unix.LOCK_UN), w.part.f.Close())
}

// Commit implements BlobWriter. If ctx is done, the part is kept for a later Begin.
func (w *writer) Commit(ctx context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error) {
	if w.done {
		return ocispec.Descriptor{}, os.ErrClosed
	}
	d, err := w.commit(ctx, size, want)
	if err != nil {
		return ocispec.Descriptor{}, errors.Join(err, w.Close())
	}
	w.done = true
	return d, w.part.f.Close()
}

func (w *writer) commit(ctx context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error) {
	if err := ctx.Err(); err != nil {
		return ocispec.Descriptor{}, err
	}
	if want != "" {
		if _, err := format.ParseDigest(want); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	got := format.Sum(w.hash.Sum(nil))
	if (size >= 0 && size != w.size) || (want != "" && want != got.Digest()) {
		mismatch := &MismatchError{Want: want, Got: got.Digest(), WantSize: size, GotSize: w.size}
		if size >= 0 && w.size < size {
			return ocispec.Descriptor{}, mismatch // the written bytes may be a correct beginning
		}
		return ocispec.Descriptor{}, errors.Join(mismatch, w.Reset())
	}
	if err := w.finish(); err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := w.keep(got); err != nil {
		return ocispec.Descriptor{}, err
	}
	if p := w.part; p.place != nil {
		p.place.Keep(w.size, p.end, p.table)
	}
	return ocispec.Descriptor{Digest: got.Digest(), Size: w.size}, nil
}

// finish writes the last piece, the table and the trailer.
func (w *writer) finish() error {
	p := w.part
	raw := w.size <= format.SmallBlob
	if !raw && len(w.piece) > 0 {
		w.handOver()
	}
	if err := w.settle(); err != nil || p.place != nil {
		return err
	}
	tail := p.table
	if raw {
		tail = append(tail, w.piece...)
		w.dropPiece()
	}
	tail = appendTrailer(tail, w.size, len(p.table)/format.SeekEntry)
	tail = binary.LittleEndian.AppendUint32(tail, crc32.Update(p.crc, castagnoli(), tail))
	if _, err := p.f.WriteAt(tail, p.end); err != nil {
		return w.c.failed("write to the cache", err)
	}
	if err := p.f.Truncate(p.end + int64(len(tail))); err != nil {
		return w.c.failed("write to the cache", err)
	}
	if w.c.volatile {
		return nil
	}
	if err := p.f.Sync(); err != nil {
		return w.c.failed("write to the cache", err)
	}
	return nil
}

// keep moves the finished file to its place, unless a valid one is there.
func (w *writer) keep(s format.Sum) error {
	part, site := w.part.f.Name(), site{w.c.root, w.c.path(s)}
	if w.part.place != nil {
		return os.Remove(part)
	}
	if err := makeDir(filepath.Dir(site.path)); err != nil {
		return w.c.failed("keep a blob in the cache", err)
	}
	return w.c.locked(unix.LOCK_EX, func() error {
		if e, err := openEntry(site, s, w.c.enc.FrameSize); err == nil {
			return errors.Join(e.touch(), e.Close(), os.Remove(part))
		}
		err := os.Rename(part, site.path)
		if err != nil { // a rename cannot replace a directory
			err = errors.Join(os.RemoveAll(site.path), os.Rename(part, site.path))
		}
		if err != nil {
			return w.c.failed("keep a blob in the cache", err)
		}
		return nil
	})
}

// resume takes over the whole pieces at the start of the part file and truncates the rest: a torn write, a last piece
// of another size, or damage.
func (w *writer) resume(ctx context.Context) error {
	info, err := w.part.f.Stat()
	if err != nil {
		return err
	}
	buf := make([]byte, min(info.Size(), format.MaxFrameLen(int64(w.c.enc.FrameSize))))
	out := []byte(nil)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := w.part.f.ReadAt(buf, w.part.end)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		length, size, err := format.SplitFrame(buf[:n])
		if err != nil || size != int64(w.c.enc.FrameSize) {
			break
		}
		if out, err = format.DecodeFrame(w.c.dec, buf[:length], out, size); err != nil {
			break
		}
		w.part.add(buf[:length], int(size))
		w.hash.Write(out)
		w.size += size
	}
	if err := w.part.f.Truncate(w.part.end); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
