package bundle

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Source provides the blobs of a bundle to write, compressed in frames. A cache.Cache is one.
type Source interface {
	// Stat reports whether there is a blob, and its size.
	Stat(ctx context.Context, d digest.Digest) (size int64, ok bool, err error)
	// ReadBlob returns a whole blob of at most max bytes, checked against its digest.
	ReadBlob(ctx context.Context, d digest.Digest, max int64) ([]byte, error)
	// Encoding returns the encoder for index.json, the directory and small blobs, which also names the encoder of the
	// frames.
	Encoding() *format.Encoder
	// Frames returns the frames of a blob of more than format.SmallBlob bytes.
	Frames(ctx context.Context, d digest.Digest) (format.Frames, error)
}

// A settler is a Source that checks its output while more is written. Write calls it at the end.
type settler interface {
	// settle waits for the checks and returns their error, else the write's own.
	settle(written error) error
}

// blobsOf are the blobs of a Source, for a walk.
type blobsOf struct{ Source }

func (b blobsOf) lookup(ctx context.Context, s format.Sum) (int64, bool, error) {
	return b.Stat(ctx, s.Digest())
}

func (b blobsOf) read(ctx context.Context, s format.Sum, max int64) ([]byte, error) {
	return b.ReadBlob(ctx, s.Digest(), max)
}
