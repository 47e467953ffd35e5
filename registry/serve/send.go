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
	chunkSize = 64 << 10              // bytes written at a time: a stream's own memory
	patience  = 50 * time.Millisecond // how long a write may take before its frame's memory is given to others
	immutable = "max-age=31536000, immutable"
)

func etag(d digest.Digest) string { return `"` + string(d) + `"` }

// sendBlob answers a GET or HEAD with a blob: whole, or the one range that was asked for. Content type and caching are
// the caller's headers. An error is returned only before anything was sent, and is for the caller to tell; later ones
// cut the connection, so that no client takes for whole what is not.
//
// No client gets all that it was promised before the whole blob was compared with its digest, on this open file. A range
// waits for that; a blob of several frames that is asked for as a whole is sent while the comparison runs, but its last
// frame is held back until it is over. Ranges are ours for that:
// http.ServeContent sends what it reads at once.
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
	errRange  = errors.New("the range is not within the content")
	errClient = errors.New("the client went away or stood still")
)

// A stream sends a part of a blob to one client.
type stream struct {
	*Server
	blob
	part span
	w    http.ResponseWriter
	held *lease // of the frame that is being sent; nil if it was given back
}

// begin waits for the blob's check unless the stream can run beside it.
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
	buf := st.chunks.Get().(*[]byte)
	defer st.chunks.Put(buf)
	defer st.giveBack()
	end := st.part.start + st.part.length
	for at := st.part.start; at < end; {
		p, err := st.book.reader.Piece(st.digest, at)
		if err != nil {
			return err
		}
		stop := min(end, p.At+int64(p.Size))
		if err := st.piece(ctx, *buf, p, span{at, stop - at}); err != nil {
			return err
		}
		at = stop
	}
	return nil
}

// piece sends the part of the blob that lies in one piece, chunk by chunk. While a client takes its time, the frame's
// memory is for others; a frame that was forgotten meanwhile is decoded again.
func (st *stream) piece(ctx context.Context, buf []byte, p bundle.Piece, part span) error {
	defer st.giveBack()
	for at := part.start; at < part.start+part.length; {
		if st.held == nil {
			if err := st.hold(ctx, p); err != nil {
				return err
			}
		}
		from := p.Skip + int(at-p.At)
		n := copy(buf, st.held.content[from:from+int(min(part.start+part.length-at, chunkSize))])
		impatient := time.AfterFunc(patience, st.held.release)
		_, err := st.w.Write(buf[:n])
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

// hold takes a lease on the piece's frame. What completes the client's part is only handed out if the blob was checked
// and the file not written to since.
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
