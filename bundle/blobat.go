package bundle

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// BlobAt returns a reader of a blob at any place, and the blob's size. It compares the whole blob with its digest
// first. Memory is that of a few frames. The reader is safe for concurrent use until r is closed.
func (r *Reader) BlobAt(ctx context.Context, d digest.Digest) (io.ReaderAt, int64, error) {
	b, err := r.blobOf(d)
	if err != nil {
		return nil, 0, err
	}
	whole, err := r.Blob(ctx, d, 0)
	if err != nil {
		return nil, 0, err
	}
	_, err = io.Copy(io.Discard, whole)
	if err := errors.Join(err, whole.Close()); err != nil {
		return nil, 0, err
	}
	return &blobAt{r: r, blob: b}, b.Size, nil
}

// keptPieces is the number of frames that a blobAt remembers.
const keptPieces = 4

// A blobAt reads a blob frame by frame.
type blobAt struct {
	r    *Reader
	blob format.Blob

	mu     sync.Mutex
	pieces []*keptPiece // the last used one first
}

// A keptPiece is the content of a frame, from a place in the blob on.
type keptPiece struct {
	at       int64
	content  []byte
	raw, out []byte
}

// ReadAt implements io.ReaderAt.
func (b *blobAt) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, errors.New("a place before the beginning")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for n < len(p) {
		if at >= b.blob.Size {
			return n, io.EOF
		}
		k, err := b.piece(at)
		if err != nil {
			return n, err
		}
		m := copy(p[n:], k.content[at-k.at:])
		n, at = n+m, at+int64(m)
	}
	return n, nil
}

// piece returns the piece with a place.
func (b *blobAt) piece(at int64) (*keptPiece, error) {
	for i, k := range b.pieces {
		if at >= k.at && at < k.at+int64(len(k.content)) {
			copy(b.pieces[1:i+1], b.pieces[:i])
			b.pieces[0] = k
			return k, nil
		}
	}
	k := &keptPiece{}
	if len(b.pieces) == keptPieces {
		k = b.pieces[keptPieces-1]
		b.pieces = b.pieces[:keptPieces-1]
	}
	if k.at = 0; !b.blob.Small() {
		k.at = at - at%int64(b.r.dir.FrameSize)
	}
	var err error
	if k.content, err = b.r.piece(b.blob, k.at, &k.raw, &k.out); err != nil {
		return nil, err
	}
	b.pieces = append([]*keptPiece{k}, b.pieces...)
	return k, nil
}
