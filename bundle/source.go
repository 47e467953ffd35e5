package bundle

import (
	"context"
	"io"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Source provides the blobs of a bundle to write, compressed in frames. A Cache is one.
type Source interface {
	blobSource
	// encoding returns the encoder for index.json, the directory and small blobs, which also names the encoder of the
	// frames.
	encoding() *format.Encoder
	// open returns the frames of a blob of more than format.SmallBlob bytes.
	open(ctx context.Context, s format.Sum) (frames, error)
}

// frames are the frames of one large blob.
type frames interface {
	// blobSize is the size of the blob, and length that of its frames.
	blobSize() int64
	length() int64
	// seekEntries returns the frames' entries of the seek table. It is called after copyTo.
	seekEntries() []byte
	// copyTo copies the frames to w, using buf. It fails if they have changed since they were made.
	copyTo(ctx context.Context, w io.Writer, buf []byte) error
	close() error
}

// A settler is a Source that checks its output while more is written. Write calls it at the end.
type settler interface {
	// settle waits for the checks and returns their error, else the write's own.
	settle(written error) error
}

func (c *Cache) encoding() *format.Encoder { return c.enc }

func (c *Cache) open(_ context.Context, s format.Sum) (frames, error) {
	e, err := c.entry(s)
	if err != nil {
		return nil, err
	}
	if !c.isOwn(e) {
		return &convertedFrames{c: c, other: e}, nil
	}
	return e, nil
}

func (e *cacheEntry) blobSize() int64     { return e.size }
func (e *cacheEntry) length() int64       { return e.data }
func (e *cacheEntry) seekEntries() []byte { return e.table }
