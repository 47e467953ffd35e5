package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

const (
	chunkSize = 32 << 10 // bytes per write: a stream's own memory
	// how long a write may take before its frame's memory is released to others: about 1.3 MB/s
	patience  = 25 * time.Millisecond
	immutable = "max-age=31536000, immutable"
)

func etag(d digest.Digest) string { return `"` + string(d) + `"` }

// sendBlob answers a GET or HEAD with a blob: whole, or the single requested range. The caller sets content type and
// caching headers. It returns an error only before anything was sent, for the caller to report; later errors cut the
// connection, so that no client takes a partial content for the whole.
//
// No client receives its complete content before the whole blob was compared with its digest, on this open file. A
// range waits for that. A whole blob of several frames is sent during the comparison, but its last frame is held back
// until the end. Ranges are ours for that: http.ServeContent sends at once.
func (s *Server) sendBlob(w http.ResponseWriter, r *http.Request, b blob) error {
	h := w.Header()
	tag := etag(b.digest)
	h.Set("ETag", tag)
	h.Set("Accept-Ranges", "bytes")
	if matches(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	part, status := span{0, b.size}, http.StatusOK
	header := r.Header.Get("Range")
	if cond := r.Header.Get("If-Range"); r.Method == http.MethodGet && header != "" && (cond == "" || cond == tag) {
		want, partial, ok := parseRange(header, b.size)
		if !ok {
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", b.size))
			return errRange
		}
		if partial {
			part, status = want, http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.start, part.start+part.length-1, b.size))
		}
	}
	if r.Method == http.MethodHead {
		h.Set("Content-Length", strconv.FormatInt(part.length, 10))
		w.WriteHeader(status)
		return nil
	}
	st := &stream{Server: s, blob: b, part: part, w: w}
	if err := st.begin(r.Context()); err != nil {
		h.Del("ETag")
		h.Del("Content-Range")
		return err
	}
	h.Set("Content-Length", strconv.FormatInt(part.length, 10))
	w.WriteHeader(status)
	if err := st.run(r.Context()); err != nil {
		if r.Context().Err() == nil && !errors.Is(err, errClient) {
			b.book.log.Error("a transfer was cut off", "digest", b.digest, "client", r.RemoteAddr, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

var (
	errRange  = errors.New("the range is outside of the content")
	errClient = errors.New("the client disconnected or stalled")
)

// A stream sends a part of a blob to one client.
type stream struct {
	*Server
	blob
	part span
	w    http.ResponseWriter
	held *lease // lease on the current frame; nil if released
}

// begin waits for the blob's check unless sending can run in parallel.
func (st *stream) begin(ctx context.Context) error {
	c := st.book.checked(ctx, st.digest, st.size)
	p, err := st.book.reader.Piece(st.digest, 0)
	if err != nil {
		return err
	}
	if st.part.length == st.size && int64(p.Size) < st.size {
		return nil
	}
	return c.wait(ctx)
}

func (st *stream) run(ctx context.Context) error {
	defer st.giveBack()
	end := st.part.start + st.part.length
	for at := st.part.start; at < end; {
		p, err := st.book.reader.Piece(st.digest, at)
		if err != nil {
			return err
		}
		stop := min(end, p.At+int64(p.Size))
		if err := st.piece(ctx, p, span{at, stop - at}); err != nil {
			return err
		}
		at = stop
	}
	return nil
}

// piece sends the part of the blob in one piece, chunk by chunk. While a client is slow, the frame's memory is
// available to others; an evicted frame is decoded again. A stream that waits for a frame has no chunk.
func (st *stream) piece(ctx context.Context, p bundle.Piece, part span) error {
	defer st.giveBack()
	for at := part.start; at < part.start+part.length; {
		if st.held == nil {
			if err := st.hold(ctx, p); err != nil {
				return err
			}
		}
		from := p.Skip + int(at-p.At)
		buf := st.chunks.Get().(*[]byte)
		n := copy(*buf, st.held.content[from:from+int(min(part.start+part.length-at, chunkSize))])
		impatient := time.AfterFunc(patience, st.held.release)
		_, err := st.w.Write((*buf)[:n])
		st.chunks.Put(buf)
		if !impatient.Stop() {
			st.giveBack()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errClient, err)
		}
		at += int64(n)
	}
	return nil
}

// hold takes a lease on the piece's frame. The end of the client's part is sent only if the blob was checked and the
// file not written to since.
func (st *stream) hold(ctx context.Context, p bundle.Piece) error {
	for {
		l, err := st.book.frames.lease(ctx, st.book, p)
		if err != nil {
			return fmt.Errorf("blob %s: %w", st.digest, err)
		}
		last := p.At+int64(p.Size) >= st.part.start+st.part.length
		c := st.book.checked(ctx, st.digest, st.size)
		if !last && st.part.length == st.size || c.good() {
			st.held = l
			return nil
		}
		l.release()
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
}

func (st *stream) giveBack() {
	if st.held != nil {
		st.held.release()
		st.held = nil
	}
}
