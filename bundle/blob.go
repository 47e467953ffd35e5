package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// Blob streams a blob from byte offset on, frame by frame. Memory is one frame and its content, whatever the blob's
// size. Reading from 0 to the end checks the digest: on a mismatch, a Read fails with ErrDamaged before it returns the
// last frame's content. A stream from another offset is checked by the frames' checksums only, which stop accidents but
// not attackers: the caller must have the whole blob checked before relying on it.
func (r *Reader) Blob(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error) {
	return r.blob(ctx, d, offset, offset == 0)
}

// Unhashed is Blob without the digest check, from any offset. Only the frames' checksums are checked, which stop
// accidents but not attackers. Use it when the receiver checks the digest.
func (r *Reader) Unhashed(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error) {
	return r.blob(ctx, d, offset, false)
}

func (r *Reader) blob(ctx context.Context, d digest.Digest, offset int64, whole bool) (io.ReadCloser, error) {
	b, err := r.blobOf(d)
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > b.Size {
		return nil, fmt.Errorf("blob %s has %d bytes; there is no byte %d", d, b.Size, offset)
	}
	return r.stream(ctx, b, offset, whole), nil
}

// stream reads the pieces of b one after the other and compares the digest if they are the whole blob.
func (r *Reader) stream(ctx context.Context, b format.Blob, offset int64, whole bool) *format.PieceReader {
	raw, out := r.raw.Get().(*[]byte), r.decoded.Get().(*[]byte)
	hash := sha256.New()
	at := offset // in the blob
	load := func() ([]byte, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if at >= b.Size && (at > 0 || !whole) {
			return nil, io.EOF
		}
		piece, err := r.piece(b, at, raw, out)
		if err != nil {
			return nil, err
		}
		at += int64(len(piece))
		if whole {
			hash.Write(piece)
		}
		if whole && at >= b.Size {
			whole = false
			if got := format.Sum(hash.Sum(nil)); got != b.Sum {
				return nil, &DamageError{
					Blob: b.Sum.Digest(), Offset: r.frames[b.Frame].Off,
					Part: r.partAt(r.frames[b.Frame].Off), Reason: "content has digest " + string(got.Digest()),
				}
			}
		}
		return piece, nil
	}
	return &format.PieceReader{Load: load, End: func() error {
		r.raw.Put(raw)
		r.decoded.Put(out)
		return nil
	}}
}

// piece returns the content of b from offset at to the end of the frame that holds at. The result uses out's memory.
func (r *Reader) piece(b format.Blob, at int64, raw, out *[]byte) ([]byte, error) {
	if b.Size == 0 {
		return nil, nil
	}
	frame, skip, end := int(b.Frame), int64(b.At)+at, int64(b.At)+b.Size
	if !b.Small() {
		frame, skip = frame+int(at/int64(r.dir.FrameSize)), at%int64(r.dir.FrameSize)
		end = int64(r.frames[frame].Size)
	}
	f := r.frames[frame]
	content, err := r.content(f, raw, out)
	if err != nil {
		if damaged, ok := errors.AsType[*DamageError](err); ok {
			damaged.Blob = b.Sum.Digest()
			return nil, damaged
		}
		return nil, fmt.Errorf("blob %s: %w", b.Sum.Digest(), err)
	}
	return content[skip:end], nil
}

// content reads and decodes one frame, and returns all f.Size bytes of its content, or nil and an error. raw and out
// are scratch memory, which grows as needed. The content lies in out's memory, but *out is not the content: a stored
// frame of a local file is read in place, behind the room for its header.
func (r *Reader) content(f format.FrameInfo, raw, out *[]byte) ([]byte, error) {
	if n := int(f.Size); r.atHand && int64(f.Len) == format.StoredLen(int64(n)) {
		if cap(*out) < FrameBuffer(n) {
			*out = make([]byte, 0, FrameBuffer(n))
		}
		content, err := r.readStored(f, *out)
		if !errors.Is(err, errNotStored) {
			return content, err
		}
	}
	if cap(*raw) < int(f.Len) {
		*raw = make([]byte, f.Len)
	}
	*raw = (*raw)[:f.Len]
	if err := r.readAt(*raw, f.Off); err != nil {
		return nil, err
	}
	content, err := r.decode(*raw, *out, f)
	if err != nil {
		return nil, &DamageError{Offset: f.Off, Part: r.partAt(f.Off), Err: err, Reason: "a frame is bad"}
	}
	*out = content
	return content, nil
}
