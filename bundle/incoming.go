package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// IncomingOptions configure the blobs that arrive while a bundle is written, and how far they may be ahead of the
// writer.
type IncomingOptions struct {
	// Blobs are the blobs to come, with their sizes, and the media types of those that may be compressed layers.
	// Manifests must be in the cache already.
	Blobs []ocispec.Descriptor
	// Fetch brings one blob into the cache, or waits for it. It is called concurrently, in about the order of the
	// bundle.
	Fetch func(context.Context, digest.Digest) error
	// Jobs is the number of concurrent fetches.
	Jobs int
	// Window is the most bytes that may be in transfer or wait for the writer, unless a single blob is larger.
	Window int64
}

// An Incoming is a Source whose blobs arrive while the bundle is written. It serves one Create or Write.
type Incoming struct {
	*cache.Cache
	places *places // while the bundle is written, in scratch space
	o      IncomingOptions
	coming map[format.Sum]*coming
	room   *room // set by start

	mu      sync.Mutex
	written map[format.Sum]int64 // sizes of the blobs already written
}

// A coming blob is one that is missing at the start.
type coming struct {
	sum        format.Sum
	size       int64
	compressed bool          // by its media type
	done       chan struct{} // closed when the blob has arrived or err is set
	err        error
}

// maxAhead is how many blobs may wait for the writer, per concurrent fetch.
const maxAhead = 4

// NewIncoming returns a Source of the blobs in the cache and of those to come. They stay, unless the cache is scratch
// space: then each leaves it once the bundle has it.
func NewIncoming(c *cache.Cache, o IncomingOptions) (*Incoming, error) {
	st := &Incoming{
		Cache: c, o: o, coming: make(map[format.Sum]*coming, len(o.Blobs)),
		written: make(map[format.Sum]int64),
	}
	for _, b := range o.Blobs {
		d, err := format.ParseDigest(b.Digest)
		if err != nil {
			return nil, err
		}
		if b.Size < 0 || b.Size > format.MaxSize {
			return nil, fmt.Errorf("blob %s cannot be fetched later: its size is unknown", b.Digest)
		}
		st.coming[d] = &coming{sum: d, size: b.Size, compressed: compressedType(b.MediaType), done: make(chan struct{})}
	}
	return st, nil
}

// compressedType reports whether a media type is that of a compressed layer.
func compressedType(mediaType string) bool {
	return strings.HasSuffix(mediaType, "gzip") || strings.HasSuffix(mediaType, "zstd")
}

// isCompressed reports whether a blob to come is a compressed layer.
func (s *Incoming) isCompressed(d format.Sum) bool {
	c := s.coming[d]
	return c != nil && c.compressed
}

// here reports whether a blob is there, or was there from the start.
func (s *Incoming) here(d format.Sum) bool {
	c := s.coming[d]
	if c == nil {
		return true
	}
	select {
	case <-c.done:
		return c.err == nil
	default:
		return false
	}
}

// place has arriving blobs written to their places. The returned function ends that; no fetch may be running then.
func (s *Incoming) place(p *places) (stop func()) {
	s.places = p
	end := s.PlaceIn(p)
	return func() {
		end()
		s.places = nil
		p.stop()
	}
}

// placed returns the frames of a blob that was written to a place, or nil.
func (s *Incoming) placed(d format.Sum) *placedFrames {
	if s.places != nil {
		return s.places.take(d)
	}
	return nil
}

// Stat also finds blobs that have not arrived yet.
func (s *Incoming) Stat(ctx context.Context, of digest.Digest) (int64, bool, error) {
	d, err := format.ParseDigest(of)
	if err != nil {
		return 0, false, err
	}
	if c := s.coming[d]; c != nil {
		return c.size, true, nil
	}
	s.mu.Lock()
	size, ok := s.written[d]
	s.mu.Unlock()
	if ok {
		return size, true, nil
	}
	return s.Cache.Stat(ctx, of)
}

// start fetches the blobs in the given order. The returned function stops fetching.
func (s *Incoming) start(ctx context.Context, order []format.Blob) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var queue []*coming
	for _, b := range order {
		if c := s.coming[b.Sum]; c != nil {
			queue = append(queue, c)
		}
	}
	r := &room{bytes: s.o.Window, blobs: max(s.o.Jobs, 1) * maxAhead, freed: make(chan struct{}, 1)}
	s.room = r
	var group errgroup.Group
	group.SetLimit(max(s.o.Jobs, 1))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, c := range queue {
			err := r.take(ctx, c.size)
			group.Go(func() error {
				defer close(c.done)
				if c.err = err; err == nil {
					c.err = s.bring(ctx, c)
				}
				if c.err != nil {
					cancel(c.err) // the write has failed, so later blobs are useless
				}
				return nil
			})
		}
		_ = group.Wait() // each blob has its own error
	}()
	return func() {
		cancel(context.Canceled)
		<-ended
	}
}

// bring fetches one blob. After the first failure, all others get the same error.
func (s *Incoming) bring(ctx context.Context, c *coming) error {
	err := s.o.Fetch(ctx, c.sum.Digest())
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	if err == nil && c.size == 0 {
		return s.leave(c.sum, 0) // the writer no longer needs it
	}
	return err
}

// wait waits for a blob. A blob present from the start returns at once.
func (s *Incoming) wait(ctx context.Context, d format.Sum) error {
	c := s.coming[d]
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave drops a blob that the bundle now has, and makes room for others.
func (s *Incoming) leave(d format.Sum, size int64) error {
	s.mu.Lock()
	s.written[d] = size
	s.mu.Unlock()
	var err error
	if s.Temporary() {
		err = s.Drop(d.Digest())
	}
	if s.coming[d] != nil {
		s.room.give(size)
	}
	return err
}

// ReadBlob waits for a coming blob and returns it.
func (s *Incoming) ReadBlob(ctx context.Context, of digest.Digest, max int64) ([]byte, error) {
	d, err := format.ParseDigest(of)
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, d); err != nil {
		return nil, err
	}
	data, err := s.Cache.ReadBlob(ctx, of, max)
	if err != nil || s.coming[d] == nil {
		return data, err // manifests stay: they are small and read several times
	}
	return data, s.leave(d, int64(len(data)))
}

// Frames returns frames that wait for the blob when they are copied.
func (s *Incoming) Frames(ctx context.Context, of digest.Digest) (format.Frames, error) {
	d, err := format.ParseDigest(of)
	if err != nil {
		return nil, err
	}
	f := &comingFrames{s: s, sum: d}
	c := s.coming[d]
	if c != nil {
		f.size = c.size
		return f, nil
	}
	return f, f.load(ctx)
}

// comingFrames are frames of a blob that may not have arrived.
type comingFrames struct {
	s     *Incoming
	sum   format.Sum
	size  int64
	entry format.Frames // nil before arrival
	used  bool          // already in the bundle
}

func (f *comingFrames) load(ctx context.Context) (err error) {
	if at := f.s.placed(f.sum); at != nil {
		f.entry = at
	} else if f.entry, err = f.s.Cache.Frames(ctx, f.sum.Digest()); err != nil {
		return err
	}
	f.size = f.entry.BlobSize()
	return nil
}

// BlobSize implements format.Frames.
func (f *comingFrames) BlobSize() int64 { return f.size }

// Len implements format.Frames.
func (f *comingFrames) Len() int64 {
	if f.entry == nil {
		return format.Blob{Size: f.size}.MaxFramesLen(f.s.Encoding().FrameSize)
	}
	return f.entry.Len()
}

// SeekEntries implements format.Frames.
func (f *comingFrames) SeekEntries() []byte { return f.entry.SeekEntries() }

// CopyTo implements format.Frames.
func (f *comingFrames) CopyTo(ctx context.Context, w io.Writer, buf []byte) error {
	if err := f.s.wait(ctx, f.sum); err != nil {
		return err
	}
	if f.entry == nil {
		want := f.size
		if err := f.load(ctx); err != nil {
			return err
		}
		if f.size != want {
			return fmt.Errorf("blob %s has %d bytes instead of the expected %d", f.sum.Digest(), f.size, want)
		}
	}
	if err := f.entry.CopyTo(ctx, w, buf); err != nil {
		return err
	}
	f.used = true
	return nil
}

// Close implements format.Frames.
func (f *comingFrames) Close() error {
	if f.entry == nil {
		return nil
	}
	err := f.entry.Close()
	if f.used {
		err = errors.Join(err, f.s.leave(f.sum, f.size))
	}
	return err
}

// A room bounds the bytes ahead of the writer. One goroutine takes, others give.
type room struct {
	bytes int64
	blobs int
	freed chan struct{} // holds one

	mu        sync.Mutex
	usedBytes int64
	usedBlobs int
}

// take waits until n more bytes fit, or the room is empty.
func (r *room) take(ctx context.Context, n int64) error {
	for {
		if r.tryTake(n) {
			return nil
		}
		select {
		case <-r.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *room) tryTake(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.usedBlobs > 0 && (r.usedBytes+n > r.bytes || r.usedBlobs >= r.blobs) {
		return false
	}
	r.usedBytes += n
	r.usedBlobs++
	return true
}

func (r *room) give(n int64) {
	r.mu.Lock()
	r.usedBytes -= n
	r.usedBlobs--
	r.mu.Unlock()
	select {
	case r.freed <- struct{}{}:
	default:
	}
}
