package serve

import (
	"container/list"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/kkbundle/kkbundle/bundle"
)

// Frames are kept in reused buffers of three sizes: garbage of megabytes would accumulate faster than it is collected.
// The largest frames are those of bundles at level best; glue and small blobs need the smallest.
const (
	smallBuffer, smallBuffers   = 256 << 10, 32
	normalBuffer, normalBuffers = 4<<20 + 64<<10, 12
	largeBuffer, largeBuffers   = 8<<20 + 64<<10, 6

	maxDecodes = 8 // concurrently decoded frames; each also takes the memory of its compressed bytes
)

// A frameKey names a frame of an open bundle.
type frameKey struct {
	book   *book
	number int
}

// A frame is the decoded content of one frame, possibly still being decoded.
type frame struct {
	key     frameKey
	class   *class
	buf     []byte
	ready   chan struct{} // closed when content and err are set
	content []byte
	err     error
	leases  int           // guarded by the cache
	idle    *list.Element // its element in the cache's list while it has no lease
}

// A class holds all buffers of one size.
type class struct {
	size  int
	quota *semaphore.Weighted // concurrent leases: fewer than buffers, so that some frames remain cached

	// Guarded by the cache.
	unused int        // buffers not allocated yet
	free   [][]byte   // empty buffers
	idle   *list.List // of *frame, least recently used first
}

func newClass(size, buffers int) *class {
	return &class{size: size, quota: semaphore.NewWeighted(int64(buffers * 3 / 4)), unused: buffers, idle: list.New()}
}

// frames caches decoded frames, so that clients at the same place of the same blob share the work. Memory is bounded
// for any number of clients: a reader takes a lease on a frame, in the order of arrival, and must release it before
// waiting for a client. Its methods are safe for concurrent use.
type frames struct {
	classes []*class     // smallest first
	decodes chan *[]byte // memory for compressed bytes, one for each concurrently decoded frame

	mu   sync.Mutex
	have map[frameKey]*frame

	decoded, shared atomic.Int64 // leases with and without decoding
}

func newFrames() *frames {
	c := &frames{
		classes: []*class{
			newClass(smallBuffer, smallBuffers), newClass(normalBuffer, normalBuffers),
			newClass(largeBuffer, largeBuffers),
		},
		decodes: make(chan *[]byte, min(runtime.GOMAXPROCS(0), maxDecodes)),
		have:    make(map[frameKey]*frame),
	}
	for range cap(c.decodes) {
		c.decodes <- new([]byte)
	}
	return c
}

// class returns the class with the smallest sufficient buffers.
func (c *frames) class(content int) (*class, error) {
	for _, k := range c.classes {
		if bundle.FrameBuffer(content) <= k.size {
			return k, nil
		}
	}
	return nil, fmt.Errorf("a frame has %d bytes, more than allowed for blobs", content)
}

// A lease is the right to read a frame's content.
type lease struct {
	content []byte
	release func() // may be called more than once, and concurrently
}

// lease waits for memory and for the frame. The error is from reading it, or ctx's.
func (c *frames) lease(ctx context.Context, b *book, p bundle.Piece) (*lease, error) {
	k, err := c.class(p.Whole)
	if err != nil {
		return nil, err
	}
	if err := k.quota.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	f := c.take(frameKey{b, p.Frame}, k)
	release := sync.OnceFunc(func() {
		c.giveBack(f)
		k.quota.Release(1)
	})
	<-f.ready
	if f.err != nil {
		release()
		return nil, f.err
	}
	return &lease{content: f.content, release: release}, nil
}

// take returns the frame, and starts reading it if necessary.
func (c *frames) take(key frameKey, k *class) *frame {
	c.mu.Lock()
	f := c.have[key]
	if f != nil {
		f.leases++
		if f.idle != nil {
			k.idle.Remove(f.idle)
			f.idle = nil
		}
		c.mu.Unlock()
		c.shared.Add(1)
		return f
	}
	f = &frame{key: key, class: k, ready: make(chan struct{}), leases: 1, buf: c.buffer(k)}
	c.have[key] = f
	c.mu.Unlock()
	raw := <-c.decodes
	f.content, f.err = key.book.readFrame(key.number, raw, f.buf)
	c.decodes <- raw
	c.decoded.Add(1)
	close(f.ready)
	return f
}

// buffer returns a free buffer, a new one, or that of the least recently used frame. There is always one: leases are
// fewer than buffers.
func (c *frames) buffer(k *class) []byte {
	if len(k.free) == 0 && k.unused > 0 {
		k.unused--
		return make([]byte, k.size)
	}
	if len(k.free) == 0 {
		c.forget(k.idle.Front())
	}
	last := len(k.free) - 1
	buf := k.free[last]
	k.free = k.free[:last]
	return buf
}

// forget frees the buffer of an idle frame.
func (c *frames) forget(e *list.Element) {
	f := e.Value.(*frame)
	f.class.idle.Remove(e)
	f.class.free = append(f.class.free, f.buf)
	delete(c.have, f.key)
}

func (c *frames) giveBack(f *frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.leases--; f.leases > 0 {
		return
	}
	if f.idle = f.class.idle.PushBack(f); f.err != nil {
		c.forget(f.idle)
	}
}

// drop discards the frames of a bundle without users.
func (c *frames) drop(b *book) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.classes {
		for e := k.idle.Front(); e != nil; {
			next := e.Next()
			if e.Value.(*frame).key.book == b {
				c.forget(e)
			}
			e = next
		}
	}
}
