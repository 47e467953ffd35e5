package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// copiedFrames are the frames of a blob in another bundle.
type copiedFrames struct {
	From
	blob   format.Blob
	checks *checks
}

func (f *copiedFrames) infos() []format.FrameInfo {
	return f.frames[f.blob.Frame:][:f.blob.Pieces(f.dir.FrameSize)]
}

// BlobSize implements format.Frames.
func (f *copiedFrames) BlobSize() int64 { return f.blob.Size }

// Close implements format.Frames.
func (f *copiedFrames) Close() error { return nil }

// Len implements format.Frames.
func (f *copiedFrames) Len() (n int64) {
	for _, info := range f.infos() {
		n += int64(info.Len)
	}
	return n
}

// SeekEntries implements format.Frames.
func (f *copiedFrames) SeekEntries() (b []byte) {
	for _, info := range f.infos() {
		b = format.AppendEntry(b, info)
	}
	return b
}

// CopyTo writes the frames. The written bytes are checked, some of them after it returns.
func (f *copiedFrames) CopyTo(ctx context.Context, w io.Writer, _ []byte) error {
	run := &blobCheck{copiedFrames: f, hash: sha256.New()}
	previous := make(chan struct{})
	close(previous)
	infos := f.infos()
	for i, info := range infos {
		s, err := f.checks.take(ctx)
		if err != nil {
			return err
		}
		if cap(s.raw) < int(info.Len) {
			s.raw = make([]byte, info.Len)
		}
		s.raw = s.raw[:info.Len]
		if err = f.readAt(s.raw, info.Off); err != nil {
			err = f.blame(asDamage(err, info.Off))
		} else {
			_, err = w.Write(s.raw)
		}
		if err != nil {
			f.checks.slots <- s
			return err
		}
		before, next, last := previous, make(chan struct{}), i == len(infos)-1
		f.checks.running.Go(func() {
			run.frame(s, info, before, last)
			close(next)
			f.checks.slots <- s
		})
		previous = next
	}
	return nil
}

// blame names the blob and its bundle.
func (f *copiedFrames) blame(e *DamageError) error {
	e.Blob = f.blob.Sum.Digest()
	return fmt.Errorf("copy from %s: %w", f.Name, e)
}

// A blobCheck is the check of one blob. Frames are decoded side by side and hashed one after the other.
type blobCheck struct {
	*copiedFrames
	hash hash.Hash
}

func (c *blobCheck) frame(s *slot, info format.FrameInfo, previous <-chan struct{}, last bool) {
	content, err := c.decode(s.raw, s.out, info)
	<-previous
	if err != nil {
		c.checks.fail(c.blame(&DamageError{Offset: info.Off, Reason: "a frame is bad", Err: err}))
		return
	}
	s.out = content
	c.hash.Write(content)
	if !last {
		return
	}
	if got := format.Sum(c.hash.Sum(nil)); got != c.blob.Sum {
		c.checks.fail(c.blame(&DamageError{Offset: c.frames[c.blob.Frame].Off, Reason: "content has digest " +
			string(got.Digest())}))
	}
}

// checks decode and hash frames while these are written. The slots bound the backlog and the memory: a frame and its
// content each.
type checks struct {
	slots   chan *slot
	running sync.WaitGroup
	mu      sync.Mutex
	err     error // the first
}

type slot struct{ raw, out []byte }

func newChecks(jobs int) *checks {
	c := &checks{slots: make(chan *slot, jobs+2)} // one being written, one being hashed, and the others being decoded
	for range cap(c.slots) {
		c.slots <- &slot{}
	}
	return c
}

// take waits for a slot. It returns an error that an earlier check found.
func (c *checks) take(ctx context.Context) (*slot, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case s := <-c.slots:
		if err := c.failed(); err != nil {
			c.slots <- s
			return nil, err
		}
		return s, nil
	}
}

func (c *checks) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = cmp.Or(c.err, err)
}

func (c *checks) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// settle waits for all checks. An error of theirs is more precise than the write's own, and is returned only once: for
// the next Write the bundles count as undamaged.
func (c *checks) settle(written error) error {
	c.running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.err
	c.err = nil
	if found != nil {
		return found
	}
	return written
}
