package download

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/disk"
)

const (
	stateSuffix = ".state" // suffix of the file with the address, validator and size that a partial file belongs to
	maxState    = 16 << 10
	maxRestarts = 4 // of a file that changes on the server
	copyBuffer  = 256 << 10
)

// errStartOver means that a partial file is not the beginning of the server's file.
var errStartOver = errors.New("the file changed on the server, or the server cannot continue it")

// A state describes the file on the server of which a local file is the beginning.
type state struct {
	URL  string `json:"url"`
	ETag string `json:"etag"` // a strong one, or ""
	Size int64  `json:"size"` // -1 if unknown
}

// resumable reports whether the server can be asked for the rest of just that file.
func (s state) resumable() bool { return s.ETag != "" && s.Size > 0 }

// strongTag returns the ETag of a response if equal tags mean equal bytes.
func strongTag(h http.Header) string {
	tag := h.Get("ETag")
	if len(tag) < 2 || !strings.HasPrefix(tag, `"`) || !strings.HasSuffix(tag, `"`) {
		return ""
	}
	return tag
}

// A target is a file in a directory, which may not be there yet. Its links are not followed out of the directory.
type target struct {
	dir  *os.Root
	name string
}

// size returns the bytes of the file.
func (t target) size() int64 {
	info, err := t.dir.Lstat(t.name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// state returns the file with the transfer's state.
func (t target) state() target { return target{t.dir, t.name + stateSuffix} }

func (t target) remove() error {
	if err := t.dir.Remove(t.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forget removes the file, or its partial content, and its state.
func (t target) forget() error { return errors.Join(t.remove(), t.state().remove()) }

// read returns the content of a small file.
func (t target) read(limit int64) (data []byte, err error) {
	f, err := t.dir.Open(t.name)
	if err != nil {
		return nil, err
	}
	data, err = io.ReadAll(io.LimitReader(f, limit))
	return data, errors.Join(err, f.Close())
}

// digest returns the sha256 of the file.
func (t target) digest(ctx context.Context) (d digest.Digest, err error) {
	f, err := t.dir.Open(t.name)
	if err != nil {
		return "", err
	}
	d, err = disk.DigestOf(ctx, f, func(int) {})
	return d, errors.Join(err, f.Close())
}

// A transfer is one file on its way.
type transfer struct {
	*Client
	target

	url      string
	known    state
	room     func(size int64) error
	progress func(done, total int64)
}

// file brings a file. A part of it that is there from an earlier run is kept if the server has the same file, by its
// strong ETag, and continues it at the very byte; otherwise the file is read from its start. Beside it lies its
// state. room is called with the size, -1 if unknown, before bytes are written; it and progress may be nil.
func (c *Client) file(ctx context.Context, address string, to target, room func(int64) error,
	progress func(done, total int64),
) error {
	t := &transfer{Client: c, url: address, target: to, room: room, progress: progress}
	best, restarts := int64(0), 0
	for failures := 0; ; {
		err := t.try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStartOver):
			if restarts++; restarts > maxRestarts {
				return unusable(address, "%w, %d times", err, restarts)
			}
			if err := t.forget(); err != nil {
				return err
			}
			continue
		case !transient(err):
			return err
		}
		if failures++; t.size() > best {
			best, failures = t.size(), 1
		}
		if failures >= c.tries {
			return gaveUp(address, err, failures)
		}
		if err := c.pause(ctx, failures, err); err != nil {
			return err
		}
	}
}

// load reads the state of a partial file, and forgets the file if it cannot be continued.
func (t *transfer) load() error {
	t.known = state{}
	data, err := t.state().read(maxState)
	if err == nil {
		err = json.Unmarshal(data, &t.known)
	}
	if err != nil || t.known.URL != t.url || !t.known.resumable() || t.size() == 0 || t.size() > t.known.Size {
		t.known = state{}
		return t.forget()
	}
	return nil
}

// try brings the rest of the file, or all of it.
func (t *transfer) try(ctx context.Context) error {
	if err := t.load(); err != nil {
		return &localError{err}
	}
	if t.known.resumable() && t.size() == t.known.Size {
		return t.unchanged(ctx)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return &localError{err}
	}
	var resp *http.Response
	if t.known.resumable() {
		resp, err = t.rest(r)
	} else {
		resp, err = t.whole(r)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(t.write(ctx, resp.Body), resp.Body.Close()); err != nil {
		return err
	}
	size := t.size()
	if t.known.Size >= 0 && size != t.known.Size {
		return fmt.Errorf("%s: %d bytes arrived; %d were expected", Shown(t.url), size, t.known.Size)
	}
	t.known.Size = size
	t.report(size)
	return nil
}

// write appends a body to the file.
func (t *transfer) write(ctx context.Context, body io.Reader) (err error) {
	f, err := t.dir.OpenFile(t.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return &localError{err}
	}
	defer func() {
		if last := errors.Join(f.Sync(), f.Close()); last != nil {
			err = errors.Join(err, &localError{last})
		}
	}()
	done := t.size()
	buf := make([]byte, copyBuffer)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return &localError{err}
			}
			done += int64(n)
			t.report(done)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (t *transfer) report(done int64) {
	if t.progress != nil {
		t.progress(done, max(t.known.Size, done))
	}
}

// unchanged asks whether the server still has the file that is here.
func (t *transfer) unchanged(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("If-None-Match", t.known.ETag)
	resp, err := t.do(r, http.StatusNotModified, http.StatusOK)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNotModified && (strongTag(resp.Header) != t.known.ETag ||
		resp.ContentLength != t.known.Size) {
		return errStartOver
	}
	t.report(t.known.Size)
	return nil
}

// whole asks for the file, and records which one it is before its first byte.
func (t *transfer) whole(r *http.Request) (*http.Response, error) {
	resp, err := t.do(r, http.StatusOK)
	if err != nil {
		return nil, err
	}
	t.known = state{URL: t.url, ETag: strongTag(resp.Header), Size: resp.ContentLength}
	data, err := json.Marshal(t.known)
	if err == nil && t.room != nil {
		err = t.room(resp.ContentLength)
	}
	if err == nil {
		err = t.remove() // bytes of another file must not be taken for the beginning of this one
	}
	if err == nil {
		err = disk.WriteFileIn(t.dir, t.state().name, 0o644, data)
	}
	if err != nil {
		return nil, errors.Join(&localError{err}, resp.Body.Close())
	}
	return resp, nil
}

// rest asks for the rest of the very file that the state describes.
func (t *transfer) rest(r *http.Request) (*http.Response, error) {
	from := t.size()
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	r.Header.Set("If-Range", t.known.ETag)
	resp, err := t.do(r, http.StatusPartialContent, http.StatusOK, http.StatusRequestedRangeNotSatisfiable,
		http.StatusPreconditionFailed)
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/%d", from, t.known.Size-1, t.known.Size)
	fits := resp.StatusCode == http.StatusPartialContent && resp.Header.Get("Content-Range") == want &&
		strongTag(resp.Header) == t.known.ETag && resp.ContentLength == t.known.Size-from
	if !fits {
		return nil, errors.Join(errStartOver, resp.Body.Close())
	}
	return resp, nil
}
