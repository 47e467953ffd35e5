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

const (
	frameMemory  = 64 << 20 // bytes of decoded frames that are kept
	leasedMemory = 48 << 20 // bytes of them that may be in use at a time
	frameUnit    = 64 << 10 // buffers of frames are multiples of this, so that they can be used again
	maxDecodes   = 8        // frames decoded at a time; each also takes the memory of its compressed bytes
)

// A frameKey names a frame of an open bundle.
type frameKey struct {
	book   *book
	number int
}

// A frame is the decoded content of one frame, or on its way to be.
type frame struct {
	key     frameKey
	buf     []byte
	ready   chan struct{} // closed when content and err are set
	content []byte
	err     error
	leases  int           // guarded by the cache
	idle    *list.Element // its place in the cache's list while nobody has a lease
}

// frames keeps decoded frames, so that clients at the same place of the same blob share the work. Memory is bounded
// whatever the number of clients: who wants to look at a frame takes a lease, in the order of asking, and must give it
// back before waiting for a client. Its methods may be called concurrently.
type frames struct {
	quota   *semaphore.Weighted // bytes of leasedMemory
	decodes chan struct{}       // a token for each frame that is being decoded

	mu   sync.Mutex
	have map[frameKey]*frame
	idle *list.List // of *frame, least recently used first
	used int        // bytes of all buffers

	decoded, shared atomic.Int64 // leases that had to decode, and those that did not
}

func newFrames() *frames {
	return &frames{
		quota:   semaphore.NewWeighted(leasedMemory),
		decodes: make(chan struct{}, min(runtime.GOMAXPROCS(0), maxDecodes)),
		have:    make(map[frameKey]*frame),
		idle:    list.New(),
	}
}

// A lease is the right to read a frame's content.
type lease struct {
	content []byte
	release func() // may be called more than once, and concurrently
}

// lease waits for memory and for the frame. The error is the one of reading it, or that of ctx.
func (c *frames) lease(ctx context.Context, b *book, p bundle.Piece) (*lease, error) {
	size := (bundle.FrameBuffer(p.Whole) + frameUnit - 1) / frameUnit * frameUnit
	if size > leasedMemory {
		return nil, fmt.Errorf("frame %d has %d bytes, more than a frame may have", p.Frame, p.Whole)
	}
	if err := c.quota.Acquire(ctx, int64(size)); err != nil {
		return nil, err
	}
	f := c.take(frameKey{b, p.Frame}, size)
	release := sync.OnceFunc(func() {
		c.giveBack(f)
		c.quota.Release(int64(size))
	})
	<-f.ready
	if f.err != nil {
		release()
		return nil, f.err
	}
	return &lease{content: f.content, release: release}, nil
}

// take returns the frame, and reads it if nobody did.
func (c *frames) take(key frameKey, size int) *frame {
	c.mu.Lock()
	f := c.have[key]
	if f != nil {
		f.leases++
		if f.idle != nil {
			c.idle.Remove(f.idle)
			f.idle = nil
		}
		c.mu.Unlock()
		c.shared.Add(1)
		return f
	}
	f = &frame{key: key, ready: make(chan struct{}), leases: 1, buf: c.buffer(size)}
	c.have[key] = f
	c.mu.Unlock()
	c.decodes <- struct{}{}
	f.content, f.err = key.book.readFrame(key.number, f.buf)
	<-c.decodes
	c.decoded.Add(1)
	close(f.ready)
	return f
}

// buffer makes room by forgetting idle frames, and returns memory of one that fits or new memory.
func (c *frames) buffer(size int) []byte {
	var buf []byte
	for c.used+size > frameMemory && c.idle.Len() > 0 {
		if old := c.forget(c.idle.Front()); cap(old) == size {
			buf = old
		}
	}
	c.used += size
	if buf == nil {
		buf = make([]byte, size)
	}
	return buf
}

func (c *frames) forget(e *list.Element) []byte {
	f := c.idle.Remove(e).(*frame)
	delete(c.have, f.key)
	c.used -= cap(f.buf)
	return f.buf
}

func (c *frames) giveBack(f *frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.leases--; f.leases > 0 {
		return
	}
	if f.idle = c.idle.PushBack(f); f.err != nil {
		c.forget(f.idle)
	}
}

// drop forgets the frames of a bundle that nobody reads any more.
func (c *frames) drop(b *book) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.idle.Front(); e != nil; {
		next := e.Next()
		if e.Value.(*frame).key.book == b {
			c.forget(e)
		}
		e = next
	}
}
