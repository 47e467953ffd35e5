package bundle

import (
	"context"
	"io"
)

// A Source has the blobs that a bundle is written from, compressed in its frames. A Cache is one.
type Source interface {
	blobSource
	// encoding returns what compresses index.json, the directory and small blobs, and what made the frames.
	encoding() *encoder
	// open returns the frames of a blob of more than smallBlob bytes.
	open(ctx context.Context, s sum) (frames, error)
}

// frames are the frames of one large blob.
type frames interface {
	// blobSize is the size of the blob, and length that of its frames.
	blobSize() int64
	length() int64
	// seekEntries has the entries of the seek table for the frames. It is called after copyTo.
	seekEntries() []byte
	// copyTo copies the frames to w by way of buf. It fails if they are not what they were when they were made.
	copyTo(ctx context.Context, w io.Writer, buf []byte) error
	close() error
}

// A settler is a Source that checks what it gave while more is written. Write asks it at the end.
type settler interface {
	// settle waits for the checks and returns what they found, or else how the writing ended.
	settle(written error) error
}

func (c *Cache) encoding() *encoder { return c.enc }

func (c *Cache) open(_ context.Context, s sum) (frames, error) {
	e, err := c.entry(s)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (e *cacheEntry) blobSize() int64     { return e.size }
func (e *cacheEntry) length() int64       { return e.data }
func (e *cacheEntry) seekEntries() []byte { return e.table }
