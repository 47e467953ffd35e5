package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/web"
)

const (
	inOnePatch   = 1 << 62 // a chunk size for registries that require PATCH of any size
	worthResume  = 1 << 20 // bytes; smaller uploads start over
	smallChunk   = 1 << 20 // nginx's default of client_max_body_size
	firstChunk   = 64 << 20
	chunkDivisor = 4
	maxUnknown   = 4 // answers of 500 about an upload's offset, before a new upload
)

// An opener opens a blob's content from an offset on.
type opener func(offset int64) (io.ReadCloser, error)

// sendBlob sends a blob to the repository, or has the registry mount it from another repository (from, "" for none),
// reported by mounted. A broken upload is resumed if the registry reports its offset; the remains of a failed upload
// are cancelled.
func (r *repo) sendBlob(ctx context.Context, d ocispec.Descriptor, from string, open opener) (mounted bool, err error) {
	u := &upload{repo: r, desc: d, blob: &blobStream{open: open}}
	defer u.blob.close()
	again := false
	err = r.retry.do(ctx, "upload of "+d.Digest.String()+" to "+r.name, passingUpload, func() error {
		resumed, err := u.resume(ctx)
		if err != nil {
			return err
		}
		if !resumed && again {
			if have, err := u.lookUp(ctx, d); err != nil || have {
				return err
			}
		}
		again = true
		if !resumed {
			if mounted, err = u.start(ctx, from); mounted || err != nil {
				return err
			}
		}
		from = "" // try only once
		return u.send(ctx)
	})
	if err != nil {
		u.abandon(ctx)
	}
	return mounted, err
}

// An upload is the upload of one blob to one repository.
type upload struct {
	*repo
	desc     ocispec.Descriptor
	blob     *blobStream
	location string // of the session; "" without one
	offset   int64  // bytes received by the registry
	minChunk int64  // bytes; the registry's OCI-Chunk-Min-Length
	whole    bool   // the last attempt was one request without PATCH
	unknown  int    // consecutive answers of 500 to the question for the offset
}

// start opens a session, unless the blob was mounted.
func (u *upload) start(ctx context.Context, from string) (mounted bool, err error) {
	u.offset = 0
	q := request{method: http.MethodPost, url: u.path("/blobs/uploads/"), want: []int{http.StatusAccepted}}
	if from != "" && !u.session.mayMount() {
		from = ""
	}
	if from != "" {
		u.mayPull(from)
		q.url += "?" + url.Values{"mount": {u.desc.Digest.String()}, "from": {from}}.Encode()
		q.want = append(q.want, http.StatusCreated)
	}
	a, err := u.call(ctx, q)
	if te, ok := asRegistryError(err); ok && from != "" && te.StatusCode != http.StatusTooManyRequests {
		u.session.mountsRefused.Add(1)
		return u.start(ctx, "") // some registries refuse a mount, or fail at it, instead of opening a session
	}
	if err != nil {
		return false, err
	}
	if a.status == http.StatusCreated {
		u.session.mounts.Store(true)
		return true, nil
	}
	if from != "" {
		u.session.mountsRefused.Add(1)
	}
	u.opened.Store(true)
	u.minChunk, _ = strconv.ParseInt(a.header.Get("OCI-Chunk-Min-Length"), 10, 64) // 0 if missing
	u.location, err = location(a)
	return false, err
}

// resume asks for the registry's offset of a broken upload. It returns false if a new session is better, and cancels
// the old one. An answer that is about the registry and not about the session (429, 502, 503, 504) keeps the session;
// so do a few of 500, with which some registries say that they have lost it.
func (u *upload) resume(ctx context.Context) (bool, error) {
	if u.location == "" {
		return false, nil
	}
	a, err := u.call(ctx, request{
		method: http.MethodGet, url: u.location,
		want: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted},
	})
	te, answered := asRegistryError(err)
	if answered && te.StatusCode == http.StatusInternalServerError {
		u.unknown++
	} else {
		u.unknown = 0
	}
	if err != nil && (!answered || web.PassingStatus(te.StatusCode) && !isFull(te) && u.unknown < maxUnknown) {
		return false, err
	}
	have := received(a.header)
	if err != nil || have < worthResume || have > u.desc.Size {
		u.abandon(ctx)
		return false, nil
	}
	if next, err := location(a); err == nil {
		u.location = next
	}
	u.offset = have
	u.logger.DebugContext(ctx, "upload continues", "repository", u.name, "digest", u.desc.Digest.String(), "offset",
		have)
	return true, nil
}

// received parses the registry's offset of an upload. "0-0" means one byte or, with the CNCF distribution, none.
func received(h http.Header) int64 {
	_, end, ok := strings.Cut(strings.TrimPrefix(h.Get("Range"), "bytes="), "-")
	last, err := strconv.ParseInt(end, 10, 64)
	if !ok || err != nil || last <= 0 {
		return 0
	}
	return last + 1
}

// send sends the missing bytes, in smaller requests if the registry refuses large ones.
func (u *upload) send(ctx context.Context) error {
	for {
		size, err := u.transfer(ctx)
		switch te, ok := asRegistryError(err); {
		case err == nil:
			return nil
		case ok && u.smaller(te, size):
			continue
		case ok && !web.PassingStatus(te.StatusCode) || !passing(err):
			u.abandon(ctx) // the session is unusable
		}
		return err
	}
}

// transfer makes the requests of one attempt. size is that of the last request's body.
func (u *upload) transfer(ctx context.Context) (size int64, err error) {
	chunk := u.session.chunk.Load()
	if u.whole = chunk == 0 && u.offset == 0; u.whole {
		return u.desc.Size, u.finish(ctx, u.desc.Size)
	}
	chunk = cmp.Or(chunk, inOnePatch)
	for u.offset < u.desc.Size {
		size = min(max(chunk, u.minChunk), u.desc.Size-u.offset)
		if err := u.patch(ctx, size); err != nil {
			return size, err
		}
	}
	return 0, u.finish(ctx, 0)
}

// smaller adapts the request size after an answer about it. It returns false for any other answer.
func (u *upload) smaller(te *transport.Error, size int64) bool {
	switch te.StatusCode {
	case http.StatusRequestEntityTooLarge:
		next := int64(firstChunk)
		for next >= size && next > smallChunk {
			next /= chunkDivisor
		}
		if next >= size || next < u.minChunk {
			return false
		}
		u.session.limitChunk(next)
		return true
	case http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusNotImplemented:
		if u.whole && size > 0 { // it requires PATCH
			u.session.limitChunk(inOnePatch)
			return true
		}
	}
	return false
}

func (u *upload) patch(ctx context.Context, size int64) error {
	a, err := u.call(ctx, request{
		method: http.MethodPatch, url: u.location, size: size, body: u.blob.section(u.offset, size),
		header: http.Header{
			"Content-Type":  {"application/octet-stream"},
			"Content-Range": {fmt.Sprintf("%d-%d", u.offset, u.offset+size-1)},
		},
		want: []int{http.StatusAccepted, http.StatusNoContent, http.StatusCreated},
	})
	if err != nil {
		return err
	}
	u.offset += size
	if have := received(a.header); have > 0 && have < u.offset { // it stored less than it read
		u.offset = have
	}
	if a.header.Get("Location") != "" {
		u.location, err = location(a)
	}
	return err
}

// finish ends the session with its digest and, if size is not 0, all of the content.
func (u *upload) finish(ctx context.Context, size int64) error {
	to, err := url.Parse(u.location)
	if err != nil {
		return fmt.Errorf("the registry returned an invalid upload address: %w", err)
	}
	// the address stays unchanged: it may be signed
	to.RawQuery = strings.TrimPrefix(to.RawQuery+"&digest="+url.QueryEscape(u.desc.Digest.String()), "&")
	q := request{
		method: http.MethodPut, url: to.String(),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		want:   []int{http.StatusCreated, http.StatusOK, http.StatusNoContent},
	}
	if size > 0 {
		q.size, q.body = size, u.blob.section(0, size)
	}
	a, err := u.call(ctx, q)
	if err != nil {
		return err
	}
	u.location = ""
	if got := a.header.Get("Docker-Content-Digest"); got != "" && got != u.desc.Digest.String() {
		return fmt.Errorf("the registry stored it as %s", clean(got))
	}
	return nil
}

// abandon lets the registry free an unfinished upload: repeated failures of a large blob would fill its disk.
func (u *upload) abandon(ctx context.Context) {
	if u.location == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	_, err := u.call(ctx, request{
		method: http.MethodDelete, url: u.location,
		want: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted},
	})
	if err != nil {
		u.logger.DebugContext(ctx, "the registry did not cancel an unfinished upload", "repository", u.name, "error",
			u.explain(u.name, err))
	}
	u.location, u.offset = "", 0
}

// location resolves an upload's address relative to the request's.
func location(a answer) (string, error) {
	text := a.header.Get("Location")
	u, err := a.url.Parse(text)
	if err != nil || text == "" || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return "", answerError(a.url.Host + " opened an upload without a usable Location header: see whether a proxy before it removes the header")
	}
	return u.String(), nil
}

// A blobStream reads a blob for consecutive requests. As long as each request continues where the last one ended, the
// blob is read once from first to last byte, so that its digest is checked.
type blobStream struct {
	open opener

	mu   sync.Mutex
	rc   io.ReadCloser // nil if none is open
	at   int64         // offset of rc
	turn int           // of the section allowed to read: net/http may still hold that of a failed request
}

// section returns a function that opens size bytes from offset on, for every attempt anew.
func (s *blobStream) section(offset, size int64) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.turn++
		if s.rc == nil || s.at != offset {
			s.drop()
			rc, err := s.open(offset)
			if err != nil {
				return nil, err
			}
			s.rc, s.at = rc, offset
		}
		return &blobSection{stream: s, turn: s.turn, left: size}, nil
	}
}

func (s *blobStream) drop() {
	if s.rc != nil {
		_ = s.rc.Close() // only read
		s.rc = nil
	}
}

func (s *blobStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.drop()
}

type blobSection struct {
	stream *blobStream
	turn   int
	left   int64
}

func (b *blobSection) Read(p []byte) (int, error) {
	s := b.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.turn != b.turn || s.rc == nil:
		return 0, os.ErrClosed
	case b.left == 0:
		return 0, io.EOF
	}
	n, err := s.rc.Read(p[:min(int64(len(p)), b.left)])
	s.at += int64(n)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if b.left > 0 && n == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		s.drop()
	}
	return n, err
}

// Close ends the section. The stream stays open for the next.
func (b *blobSection) Close() error { return nil }
