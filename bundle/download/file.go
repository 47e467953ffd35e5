package download

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cavaliergopher/grab/v3"

	"github.com/kkbundle/kkbundle/disk"
)

const (
	stateSuffix = ".state" // suffix of the file with the address, validator and size that a partial file belongs to
	maxState    = 16 << 10
	maxRestarts = 4 // of a file that changes on the server
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

// A transfer is one file on its way.
type transfer struct {
	*Client
	url, path string
	state     state
	room      func(size int64) error
	progress  func(done, total int64)
}

// File brings a file to path. A part of it that is there from an earlier run is kept if the server has the same file, by its
// strong ETag, and continues it at the very byte; otherwise the file is read from its start. Beside path lies path.state until
// Settle. room is called with the size, -1 if unknown, before bytes are written; it and progress may be nil.
func (c *Client) File(ctx context.Context, address, path string, room func(int64) error, progress func(done, total int64)) error {
	t := &transfer{Client: c, url: address, path: path, room: room, progress: progress}
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
			return ofServer(address, err)
		}
		if err := c.pause(ctx, failures-1, err); err != nil {
			return err
		}
	}
}

// Settle removes what File keeps beside a file.
func Settle(path string) error {
	if err := os.Remove(path + stateSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// size returns the bytes at path.
func (t *transfer) size() int64 {
	info, err := os.Stat(t.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// forget removes the partial file and its state.
func (t *transfer) forget() error {
	t.state = state{}
	if err := os.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return Settle(t.path)
}

// load reads the state of a partial file, and forgets the file if it cannot be continued.
func (t *transfer) load() error {
	t.state = state{}
	f, err := os.Open(t.path + stateSuffix)
	if err == nil {
		var data []byte
		data, err = io.ReadAll(io.LimitReader(f, maxState))
		err = errors.Join(err, f.Close())
		if err == nil {
			err = json.Unmarshal(data, &t.state)
		}
	}
	if err != nil || t.state.URL != t.url || !t.state.resumable() || t.size() == 0 || t.size() > t.state.Size {
		return t.forget()
	}
	return nil
}

// try brings the rest of the file, or all of it.
func (t *transfer) try(ctx context.Context) error {
	if err := t.load(); err != nil {
		return err
	}
	if t.state.resumable() && t.size() == t.state.Size {
		return t.unchanged(ctx)
	}
	request, err := grab.NewRequest(t.path, t.url)
	if err != nil {
		return &localError{err}
	}
	request.NoCreateDirectories, request.IgnoreRemoteTime, request.BufferSize = true, true, 256<<10
	request.Size = max(t.state.Size, 0)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp := (&grab.Client{HTTPClient: t}).Do(request.WithContext(ctx))
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-tick.C:
			t.report(resp.BytesComplete())
			continue
		case <-resp.Done:
			tick.Stop()
		}
		break
	}
	if err := resp.Err(); err != nil {
		return err
	}
	size := t.size()
	if t.state.Size >= 0 && size != t.state.Size {
		return fmt.Errorf("%s: %d bytes arrived; %d were expected", Shown(t.url), size, t.state.Size)
	}
	t.state.Size = size
	t.report(size)
	return syncFile(t.path)
}

func (t *transfer) report(done int64) {
	if t.progress != nil {
		t.progress(done, max(t.state.Size, done))
	}
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// unchanged asks whether the server still has the file that is here.
func (t *transfer) unchanged(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("If-None-Match", t.state.ETag)
	resp, err := t.do(r, http.StatusNotModified, http.StatusOK)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNotModified && (strongTag(resp.Header) != t.state.ETag || resp.ContentLength != t.state.Size) {
		return errStartOver
	}
	t.report(t.state.Size)
	return nil
}

// Do implements grab.HTTPClient. grab continues a file without asking whether it is the same; here it is asked.
func (t *transfer) Do(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodHead { // grab asks whether ranges work: the request for the range tells
		return t.assumed(r), nil
	}
	if r.Header.Get("Range") != "" {
		return t.rest(r)
	}
	resp, err := t.do(r, http.StatusOK)
	if err != nil {
		return nil, err
	}
	t.state = state{URL: t.url, ETag: strongTag(resp.Header), Size: resp.ContentLength}
	data, err := json.Marshal(t.state)
	if err == nil && t.room != nil {
		err = t.room(resp.ContentLength)
	}
	if err == nil {
		// Bytes of another file must not be taken for the beginning of this one.
		if err = os.Truncate(t.path, 0); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = disk.WriteFile(t.path+stateSuffix, 0o644, bytes.NewReader(data))
	}
	if err != nil {
		return nil, errors.Join(&localError{err}, resp.Body.Close())
	}
	return resp, nil
}

// assumed returns the answer that the server gave before.
func (t *transfer) assumed(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r, Body: http.NoBody, ContentLength: t.state.Size,
		Header: http.Header{"Accept-Ranges": {"bytes"}},
	}
}

// rest asks for the rest of the very file that the state describes.
func (t *transfer) rest(r *http.Request) (*http.Response, error) {
	from := t.size()
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	r.Header.Set("If-Range", t.state.ETag)
	resp, err := t.do(r, http.StatusPartialContent, http.StatusOK, http.StatusRequestedRangeNotSatisfiable, http.StatusPreconditionFailed)
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/%d", from, t.state.Size-1, t.state.Size)
	fits := resp.StatusCode == http.StatusPartialContent && resp.Header.Get("Content-Range") == want &&
		strongTag(resp.Header) == t.state.ETag && resp.ContentLength == t.state.Size-from
	if !fits {
		return nil, errors.Join(errStartOver, resp.Body.Close())
	}
	return resp, nil
}
