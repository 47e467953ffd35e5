package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"
)

// A Store receives blobs whose size and digest may be unknown so far. Its methods are called concurrently, but within a
// run no two writers with the same key are open at the same time.
type Store interface {
	// Stat returns the size of a complete blob.
	Stat(ctx context.Context, d digest.Digest) (size int64, ok bool, err error)
	// Open reads a complete blob.
	Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error)
	// Begin returns a writer that continues after the last one under the same key, and the number of bytes already
	// written.
	Begin(ctx context.Context, key string) (w BlobWriter, offset int64, err error)
}

// A BlobWriter takes the bytes of one blob. It is an alias of an interface literal, so that a Store need not import
// this package.
type BlobWriter = interface {
	io.Writer
	// Commit keeps the blob if it has that size and digest (-1 and "" if unknown), and returns both. An error without
	// an operating system cause means the content is wrong; then nothing is kept.
	Commit(ctx context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error)
	// Reset discards the written bytes.
	Reset() error
	// Close without Commit keeps the written bytes for a later Begin.
	Close() error
}

// A Cache is a Store with a run's counters.
type Cache struct {
	Store Store
	// Count adds to the run's bytes to transfer, transferred, and there already.
	Count func(total, done, cached int64)
	// Flights has one writer at a time per digest, file or URL.
	Flights singleflight.Group
}

// Stored reads a small blob from the store, if present, and checks it.
func (c *Cache) Stored(ctx context.Context, d digest.Digest, limit int64) (data []byte, ok bool, err error) {
	size, ok, err := c.Store.Stat(ctx, d)
	if err != nil {
		return nil, false, &StoreError{Cause: err}
	}
	if !ok {
		return nil, false, nil
	}
	if size > limit {
		return nil, false, fmt.Errorf("blob %s: %d bytes exceed the limit of %d", d, size, limit)
	}
	rc, err := c.Store.Open(ctx, d)
	if err != nil {
		return nil, false, &StoreError{Cause: err}
	}
	data, err = io.ReadAll(io.LimitReader(rc, limit+1))
	if err := errors.Join(err, rc.Close()); err != nil {
		return nil, false, &StoreError{Cause: err}
	}
	if SHA256Of(data) != d {
		return nil, false, &StoreError{Cause: fmt.Errorf("blob %s is damaged in the cache: remove it and run again", d)}
	}
	return data, true, nil
}

// Put writes a small blob into the store.
func (c *Cache) Put(ctx context.Context, data []byte, d digest.Digest) error {
	_, err := Once(&c.Flights, "put "+d.String(), func() (struct{}, error) { return struct{}{}, c.write(ctx, data, d) })
	return err
}

func (c *Cache) write(ctx context.Context, data []byte, d digest.Digest) (err error) {
	if _, ok, err := c.Store.Stat(ctx, d); err != nil || ok {
		return err
	}
	w, err := c.begin(ctx, d.String())
	if err != nil {
		return err
	}
	defer func() { err = closed(w, err) }()
	if _, err := w.Write(data); err != nil {
		return &StoreError{Cause: err}
	}
	if _, err := w.Commit(ctx, int64(len(data)), d); err != nil {
		return &StoreError{Cause: err}
	}
	return nil
}

// Head returns the beginning of a blob, at most most bytes.
func (c *Cache) Head(ctx context.Context, d digest.Digest, most int64) (head []byte, err error) {
	rc, err := c.Store.Open(ctx, d)
	if err != nil {
		return nil, &StoreError{Cause: err}
	}
	defer func() {
		if closeErr := rc.Close(); err == nil && closeErr != nil {
			err = &StoreError{Cause: closeErr}
		}
	}()
	if head, err = io.ReadAll(io.LimitReader(rc, most)); err != nil {
		return nil, &StoreError{Cause: err}
	}
	return head, nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// begin returns a writer of an empty blob.
func (c *Cache) begin(ctx context.Context, key string) (BlobWriter, error) {
	w, offset, err := c.Store.Begin(ctx, key)
	if err != nil {
		return nil, &StoreError{Cause: err}
	}
	if offset > 0 {
		if err := w.Reset(); err != nil {
			return nil, closed(w, &StoreError{Cause: err})
		}
	}
	return w, nil
}

// closed closes the writer and returns err, or else the error of closing.
func closed(w BlobWriter, err error) error {
	if closeErr := w.Close(); closeErr != nil && err == nil {
		return &StoreError{Cause: closeErr}
	}
	return err
}

// CopyIn stores the output of produce, always from the start.
func (c *Cache) CopyIn(ctx context.Context, key string, want digest.Digest,
	produce func(io.Writer) error,
) (desc ocispec.Descriptor, err error) {
	w, err := c.begin(ctx, key)
	if err != nil {
		return desc, err
	}
	defer func() { err = closed(w, err) }()
	counted := &countingWriter{count: c.Count, w: w}
	if err := produce(counted); err != nil {
		c.Count(0, -counted.n, 0)
		return desc, errors.Join(err, w.Reset())
	}
	if desc, err = w.Commit(ctx, counted.n, want); err == nil {
		return desc, nil
	}
	c.Count(0, -counted.n, 0)
	switch {
	case context.Cause(ctx) != nil:
		return desc, context.Cause(ctx)
	case isSystem(err):
		return desc, &StoreError{Cause: err}
	}
	return desc, fmt.Errorf("%w: %w", ErrMismatch, err)
}

type countingWriter struct {
	count func(total, done, cached int64)
	w     io.Writer
	n     int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.count(0, int64(n), 0)
	if err != nil {
		err = &StoreError{Cause: err}
	}
	return n, err
}

// A resumer is a Store that reports the size of partial blobs from an earlier run.
type resumer interface {
	Partial(ctx context.Context, key string) (int64, error)
}

// Resumable returns how many bytes of a blob of that size, -1 if unknown, need no transfer.
func (c *Cache) Resumable(ctx context.Context, d digest.Digest, size int64) (int64, error) {
	r, ok := c.Store.(resumer)
	if !ok || size < 0 {
		return 0, nil
	}
	n, err := r.Partial(ctx, d.String())
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", &StoreError{Cause: err})
	}
	return min(n, size), nil
}

// Once runs f, or waits for a running f with the same key and shares its outcome.
func Once[T any](flights *singleflight.Group, key string, f func() (T, error)) (T, error) {
	v, err, _ := flights.Do(key, func() (any, error) { return f() })
	if err != nil {
		var zero T
		return zero, err
	}
	return v.(T), nil // f returns a T
}

// Stopping returns a reader that fails when the context ends.
func Stopping(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	})
}
