package registry

import (
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
)

const (
	inOnePatch   = 1 << 62 // a chunk size for registries that want a PATCH, and do not mind its size
	worthResume  = 1 << 20 // bytes; less is sent anew
	smallChunk   = 1 << 20 // nginx takes this much where nobody set client_max_body_size
	firstChunk   = 64 << 20
	chunkDivisor = 4
)

// An opener opens a blob's content from a byte on.
type opener func(offset int64) (io.ReadCloser, error)

// sendBlob brings a blob into the repository, or has the registry take it over from another of its repositories (from, "" for
// none), which it says by mounted. What a broken connection left at the registry is continued if the registry tells how much
// it has; what is left of an upload that failed in the end is dropped.
func (r *repo) sendBlob(ctx context.Context, d ocispec.Descriptor, from string, open opener) (mounted bool, err error) {
	u := &upload{repo: r, desc: d, blob: &blobStream{open: open}}
	defer u.blob.close()
	again := false
	err = r.retry.do(ctx, "upload of "+d.Digest.String()+" to "+r.name, passingUpload, func() error {
		resumed, err := u.resume(ctx)
		if err != nil || !resumed && again && u.arrived(ctx) {
			return err
		}
		again = true
		if !resumed {
			if mounted, err = u.start(ctx, from); mounted || err != nil {
				return err
			}
		}
		from = "" // asked once
		return u.send(ctx)
	})
	if err != nil {
		u.abandon(ctx)
	}
	return mounted, err
}

// An upload is one blob on its way into one repository.
type upload struct {
	*repo
	desc     ocispec.Descriptor
	blob     *blobStream
	location string // of the session; "" where there is none
	offset   int64  // bytes that the registry has
	minChunk int64  // bytes; the registry's OCI-Chunk-Min-Length
	whole    bool   // the last attempt was one request without PATCH
}

// start opens a session, unless the blob was mounted.
func (u *upload) start(ctx context.Context, from string) (mounted bool, err error) {
	u.offset = 0
	q := request{method: http.MethodPost, url: u.path("/blobs/uploads/"), want: []int{http.StatusAccepted}}
	if from != "" {
		u.mayPull(from)
		q.url += "?" + url.Values{"mount": {u.desc.Digest.String()}, "from": {from}}.Encode()
		q.want = append(q.want, http.StatusCreated)
	}
	a, err := u.call(ctx, q)
	if te, ok := asRegistryError(err); ok && from != "" && !passingStatus(te.StatusCode) {
		return u.start(ctx, "") // some registries refuse to mount instead of opening a session
	}
	if err != nil {
		return false, err
	}
	if a.status == http.StatusCreated {
		return true, nil
	}
	u.minChunk, _ = strconv.ParseInt(a.header.Get("OCI-Chunk-Min-Length"), 10, 64) // 0 where it says nothing
	u.location, err = location(a)
	return false, err
}

// resume asks how much of a broken upload the registry has. It says no where a new session is better, and drops the old one.
func (u *upload) resume(ctx context.Context) (bool, error) {
	if u.location == "" {
		return false, nil
	}
	a, err := u.call(ctx, request{method: http.MethodGet, url: u.location, want: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted}})
	if _, answered := asRegistryError(err); err != nil && !answered {
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
	u.logger.DebugContext(ctx, "upload continues", "repository", u.name, "digest", u.desc.Digest.String(), "offset", have)
	return true, nil
}

// arrived says whether the registry has the blob after an upload whose end was not heard of.
func (u *upload) arrived(ctx context.Context) bool {
	have, err := u.hasBlob(ctx, u.desc)
	return have && err == nil
}

// received reads how many bytes of an upload a registry has. "0-0" means one byte or, with the CNCF distribution, none.
func received(h http.Header) int64 {
	_, end, ok := strings.Cut(strings.TrimPrefix(h.Get("Range"), "bytes="), "-")
	last, err := strconv.ParseInt(end, 10, 64)
	if !ok || err != nil || last <= 0 {
		return 0
	}
	return last + 1
}

// send sends what the registry lacks, in ever smaller requests if it refuses large ones.
func (u *upload) send(ctx context.Context) error {
	for {
		size, err := u.transfer(ctx)
		switch te, ok := asRegistryError(err); {
		case err == nil:
			return nil
		case ok && u.smaller(te, size):
			continue
		case ok && !passingStatus(te.StatusCode) || !passing(err):
			u.abandon(ctx) // the session is of no use any more
		}
		return err
	}
}

// transfer makes the requests of one attempt. size is that of the last one's body.
func (u *upload) transfer(ctx context.Context) (size int64, err error) {
	chunk := u.session.chunk.Load()
	if u.whole = chunk == 0 && u.offset == 0; u.whole {
		return u.desc.Size, u.finish(ctx, u.desc.Size)
	}
	if chunk == 0 {
		chunk = inOnePatch
	}
	for u.offset < u.desc.Size {
		size = min(max(chunk, u.minChunk), u.desc.Size-u.offset)
		if err := u.patch(ctx, size); err != nil {
			return size, err
		}
	}
	return 0, u.finish(ctx, 0)
}

// smaller decides how to go on after an answer that is about how the blob was sent: it says no to all others.
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
		if u.whole && size > 0 { // it wants its bytes by PATCH
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
	if have := received(a.header); have > 0 && have < u.offset { // it kept less than it read
		u.offset = have
	}
	if a.header.Get("Location") != "" {
		u.location, err = location(a)
	}
	return err
}

// finish ends the session with its digest and, where size is not 0, all of the content.
func (u *upload) finish(ctx context.Context, size int64) error {
	to, err := url.Parse(u.location)
	if err != nil {
		return fmt.Errorf("the registry's address for the upload is not one: %w", err)
	}
	to.RawQuery = strings.TrimPrefix(to.RawQuery+"&digest="+url.QueryEscape(u.desc.Digest.String()), "&") // what is there stays as it is: it may be signed
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

// abandon lets the registry free what it received: a large blob that fails several times would fill its disk.
func (u *upload) abandon(ctx context.Context) {
	if u.location == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	_, err := u.call(ctx, request{method: http.MethodDelete, url: u.location, want: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted}})
	if err != nil {
		u.logger.DebugContext(ctx, "the registry did not drop an unfinished upload", "repository", u.name, "error", u.explain(u.name, err))
	}
	u.location, u.offset = "", 0
}

// location resolves where an upload goes, against the address that it was asked for at.
func location(a answer) (string, error) {
	text := a.header.Get("Location")
	u, err := a.url.Parse(text)
	if err != nil || text == "" || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return "", errors.New("the registry opened an upload without saying where it goes (no usable Location header)")
	}
	return u.String(), nil
}

// A blobStream reads a blob for one request after the other. While requests take up where the last one ended, it is read
// once, from its first byte to its last, so that its digest is checked.
type blobStream struct {
	open opener

	mu   sync.Mutex
	rc   io.ReadCloser // nil if none is open
	at   int64         // where rc is
	turn int           // of the section that may read: net/http may still hold the one of a request that failed
}

// section returns what opens size bytes from offset on, for every attempt anew.
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
		_ = s.rc.Close() // it was only read
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
