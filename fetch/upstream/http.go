package upstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/web"
)

const (
	copyBuffer = 256 << 10
	// MaxBlob bounds a blob of unknown size; bundles cannot hold larger ones.
	MaxBlob = 1 << 53
	// MaxUnknown bounds a file of unknown size, which could be endless. The largest installation images have some 10
	// GiB.
	MaxUnknown = 64 << 30
)

// errChanged means the file changed upstream during the download; the download restarts.
var errChanged = errors.New("the file changed upstream during the download")

// ErrMismatch means a complete blob has the wrong content.
var ErrMismatch = errors.New("wrong content (nothing of it was kept)")

// A Downloader brings blobs into the cache.
type Downloader struct {
	Sender     *Sender
	Cache      *Cache
	Dirs       *SourceDirs
	Records    *Records // nil remembers nothing
	MaxUnknown int64
	buffers    sync.Pool // of *[]byte
}

// Fetch brings a blob into the store unless it is there. The same blob is never transferred twice at once.
func (l *Downloader) Fetch(ctx context.Context, d *Download) error {
	_, err := Once(&l.Cache.Flights, "blob "+d.Want.String(), func() (ocispec.Descriptor, error) {
		size, ok, err := l.Cache.Store.Stat(ctx, d.Want)
		if err != nil {
			return ocispec.Descriptor{}, &StoreError{Cause: err}
		}
		if ok && d.Size >= 0 && size != d.Size {
			return ocispec.Descriptor{}, fmt.Errorf("%s: wrong size: expected %d bytes, got %d", d.What, d.Size, size)
		}
		if ok {
			return ocispec.Descriptor{Digest: d.Want, Size: size}, nil
		}
		if desc, ok, err := l.Dirs.Find(ctx, d); err != nil || ok {
			return desc, err
		}
		return d.Run(ctx)
	})
	return err
}

// A Download is the reading of one blob from the first place that has it, with retries.
type Download struct {
	Loader *Downloader
	Places []Origin
	What   string        // the upstream URL or reference, for errors
	Names  []string      // possible names in a directory
	Want   digest.Digest // "" if unknown
	Size   int64         // -1 if unknown
	From   string        // the override's address; "" for none
	// Remember records the file for later runs, and first checks whether it is unchanged.
	Remember bool
	// Planned means that the size is already in the session's total.
	Planned bool
	// HTML means that the server called the last answer a page.
	HTML bool
}

// An Origin is a server with the address of one file, and the means to ask for it.
type Origin struct {
	Peer   *Peer
	URL    *url.URL
	Client func(context.Context) (*http.Client, error)
	Header http.Header
	// Explain adds cause and remedy to an answer.
	Explain func(error) error
}

// Request returns a request for the file, with the origin's header.
func (o Origin) Request(ctx context.Context, method string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, o.URL.String(), http.NoBody)
	if err == nil {
		maps.Copy(req.Header, o.Header)
	}
	return req, err
}

// Each calls f for one origin after the other until it succeeds. Its error has the file and the places.
func (d *Download) Each(ctx context.Context, f func(o Origin) error) error {
	peers := make([]*Peer, len(d.Places))
	for i, o := range d.Places {
		peers[i] = o.Peer
	}
	err := d.Loader.Sender.InTurn(ctx, peers, func(i int) error {
		err := d.Places[i].explained(f(d.Places[i]))
		if err != nil && len(d.Places) > 1 {
			return fmt.Errorf("from %s: %w", d.Places[i].URL.Redacted(), err)
		}
		return err
	})
	var store *StoreError
	switch {
	case err == nil:
		return nil
	case len(d.Places) != 1 || !d.Places[0].Peer.IsMirror() || errors.As(err, &store):
		return fmt.Errorf("%s: %w", d.What, err)
	}
	return fmt.Errorf("%s (from mirror %s): %w", d.What, d.Places[0].URL.Redacted(), err)
}

func (o Origin) explained(err error) error {
	if _, final := errors.AsType[*permanentError](err); web.Status(err) != nil && !final {
		return o.Explain(err)
	}
	return err
}

// Run brings the blob into the store. Bytes read before an error are kept for the next run, and for the next place.
func (d *Download) Run(ctx context.Context) (desc ocispec.Descriptor, err error) {
	t := &transfer{d: d, total: d.Size, counted: d.Size}
	if !d.Planned {
		t.counted = -1
	}
	err = d.Each(ctx, func(o Origin) error {
		t.from, t.total = o, d.Size
		desc, err = t.run(ctx)
		return err
	})
	return desc, err
}

// A transfer is the state of a download between its requests.
type transfer struct {
	d         *Download
	from      Origin
	w         BlobWriter
	offset    int64   // bytes written to w
	total     int64   // size of the blob, -1 if not known yet
	encoding  string  // content encoding of the answer
	last      *memory // the record of the last download, nil if there is none
	validator string  // the version of the file written to w, for If-Range; "" if unknown
	joined    bool    // w has bytes of several answers, or of an earlier run
	best      int64   // the largest offset reached: only bytes beyond it count as progress

	counted int64 // the blob's share of the session's total, including prior; -1 if none
	prior   int64 // bytes of an earlier run among offset
	fresh   int64 // bytes of this run among offset
}

func (t *transfer) run(ctx context.Context) (ocispec.Descriptor, error) {
	desc, joined, err := t.once(ctx)
	if errors.Is(err, errUnchanged) {
		t.d.Loader.Cache.Count(0, 0, t.last.Size)
		return t.last.descriptor(), nil
	}
	if joined && errors.Is(err, ErrMismatch) {
		// Pieces of different answers may not belong together; reading again from the start decides.
		t.d.Loader.Sender.Log.WarnContext(ctx, "resumed content does not fit together, starting over", "what", t.d.What)
		desc, _, err = t.once(ctx)
	}
	return desc, err
}

// once reads and commits. It reports whether the committed blob came in several pieces.
func (t *transfer) once(ctx context.Context) (desc ocispec.Descriptor, joined bool, err error) {
	if t.d.Want != "" {
		if err := t.begin(ctx, t.d.Want.String()); err != nil {
			return desc, false, err
		}
	}
	defer func() {
		if t.w == nil {
			return
		}
		if closeErr := t.w.Close(); err == nil && closeErr != nil {
			err = &StoreError{Cause: closeErr}
		}
		t.w = nil
		if err != nil {
			t.uncount()
			t.offset, t.validator = 0, ""
		}
	}()
	if err := t.read(ctx); err != nil {
		return desc, false, err
	}
	desc, err = t.w.Commit(ctx, t.total, t.d.Want)
	switch {
	case err == nil:
		if t.counted < 0 {
			t.d.Loader.Cache.Count(t.fresh, 0, 0)
		}
		if t.d.Remember && t.validator != "" && !t.d.HTML {
			t.d.Loader.Records.memorize(ctx, memory{t.from.URL.String(), t.validator, desc.Digest, desc.Size})
		}
		return desc, t.joined, nil
	case context.Cause(ctx) != nil:
		return desc, false, context.Cause(ctx)
	case isSystem(err):
		return desc, false, &StoreError{Cause: err}
	}
	if t.encoding != "" {
		return desc, t.joined, fmt.Errorf("%w: the server uses the unrequested encoding %s: %w", ErrMismatch,
			Printable(t.encoding), err)
	}
	return desc, t.joined, fmt.Errorf("%w: %w", ErrMismatch, err)
}

// isSystem reports whether err is about the disk rather than the content.
func isSystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

func (t *transfer) begin(ctx context.Context, key string) error {
	w, offset, err := t.d.Loader.Cache.Store.Begin(ctx, key)
	if err != nil {
		return &StoreError{Cause: err}
	}
	t.w, t.offset, t.prior, t.best, t.joined = w, offset, offset, offset, offset > 0
	if t.counted >= 0 {
		t.d.Loader.Cache.Count(-offset, 0, 0)
	}
	t.d.Loader.Cache.Count(0, 0, offset)
	return nil
}

// reset starts over.
func (t *transfer) reset() error {
	if t.w == nil {
		return nil
	}
	if err := t.w.Reset(); err != nil {
		return &StoreError{Cause: err}
	}
	t.uncount()
	t.offset, t.validator, t.joined = 0, "", false
	return nil
}

// uncount removes this blob's surplus from the counters.
func (t *transfer) uncount() {
	if t.counted >= 0 {
		t.d.Loader.Cache.Count(t.prior, 0, 0)
	}
	t.d.Loader.Cache.Count(0, -t.fresh, -t.prior)
	t.prior, t.fresh = 0, 0
}

// read sends requests until the writer has the whole blob.
func (t *transfer) read(ctx context.Context) error {
	a := attempts{sender: t.d.Loader.Sender, peer: t.from.Peer, what: t.d.What}
	defer a.end()
	for {
		if t.w != nil && t.total >= 0 && t.offset > t.total {
			if err := t.reset(); err != nil {
				return err
			}
		}
		if t.w != nil && t.total >= 0 && t.offset == t.total {
			return nil
		}
		if t.offset > 0 && !t.provable() {
			if err := t.reset(); err != nil {
				return err
			}
		}
		whole, err := t.request(ctx)
		if err == nil && whole {
			return nil
		}
		if t.offset > t.best {
			t.best = t.offset
			a.progress()
		}
		if err == nil {
			continue // the writer already has a part: request the rest
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// provable reports whether a rest can be proved to belong to the bytes in the writer: by the digest of the whole, or by
// a validator of the file's version. Otherwise the download starts over: two versions would make one file.
func (t *transfer) provable() bool { return t.d.Want != "" || t.validator != "" }

// request sends one request and writes the answer. It returns false without an error if another request is needed at
// once.
func (t *transfer) request(ctx context.Context) (whole bool, err error) {
	req, err := t.from.Request(ctx, http.MethodGet)
	if err != nil {
		return false, permanent("%w", err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	if t.offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", t.offset))
		if t.validator != "" {
			req.Header.Set("If-Range", t.validator)
		}
	}
	if t.last = nil; t.d.Remember && t.w == nil {
		if t.last = t.d.Loader.Records.recall(ctx, t.from.URL.String()); t.last != nil {
			t.last.ask(req.Header)
		}
	}
	client, err := t.from.Client(ctx)
	if err != nil {
		return false, &permanentError{err} // retried enough, and explained
	}
	resp, err := t.d.Loader.Sender.Send(ctx, t.from.Peer, client, req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if err := t.check(resp); err != nil {
		return false, err
	}
	t.d.HTML = content.SaysHTML(resp.Header)
	if t.w == nil {
		if err := t.begin(ctx, t.key()); err != nil {
			return false, err
		}
		if t.validator == "" && t.offset > 0 {
			// The part may be of another version.
			if err := t.reset(); err != nil {
				return false, err
			}
		}
		if t.offset > 0 {
			return false, nil
		}
	}
	if err := t.copy(resp.Body); err != nil {
		return false, err
	}
	return true, nil
}

// key names a part of a file of unknown digest. A later run can resume it if address, version and size are the same.
func (t *transfer) key() string { return partKey(t.from.URL, t.validator, t.total) }

func partKey(address *url.URL, validator string, total int64) string {
	return fmt.Sprintf("url-%x", sha256.Sum256([]byte(address.String()+"\n"+validator+"\n"+
		strconv.FormatInt(total, 10))))
}

// check decides whether an answer continues the writer's content, starts over, or is useless.
func (t *transfer) check(resp *http.Response) error {
	if m := t.last; m != nil && (resp.StatusCode == http.StatusNotModified ||
		resp.StatusCode == http.StatusOK && validator(resp.Header) == m.Validator && resp.ContentLength == m.Size) {
		return &permanentError{errUnchanged}
	}
	code := resp.StatusCode
	if code == http.StatusPartialContent && t.offset == 0 && isWhole(resp) {
		code = http.StatusOK // some caches answer so to every request
	}
	switch code {
	case http.StatusOK:
		if t.offset > 0 { // the answer begins at 0
			if err := t.reset(); err != nil {
				return err
			}
		}
		if err := t.decoded(resp.Header); err != nil {
			return err
		}
		if err := t.learn(resp.ContentLength); err != nil {
			if content.SaysHTML(resp.Header) {
				return permanent("the server sends a web page (HTML) in place of it: %w; a proxy or firewall may want a sign-in: open the address in a browser", err)
			}
			return err
		}
		if t.d.Want == "" && endsWithConnection(resp) {
			return permanent("server sends no Content-Length, so that a broken connection looks like the end of the file: set its sha256")
		}
		t.validator = validator(resp.Header)
		return nil
	case http.StatusPartialContent:
		return t.checkPartial(resp)
	case http.StatusRequestedRangeNotSatisfiable:
		if t.offset == 0 {
			return newStatusError(resp)
		}
		if err := t.reset(); err != nil {
			return err
		}
		return errChanged
	default:
		return newStatusError(resp)
	}
}

func (t *transfer) checkPartial(resp *http.Response) error {
	start, total, ok := contentRange(resp.Header.Get("Content-Range"))
	v := validator(resp.Header)
	switch {
	case t.offset == 0:
		return permanent("the server answered with a part (206) to a request for the whole")
	case !ok || start != t.offset,
		t.validator != "" && v != "" && v != t.validator,
		t.d.Want == "" && !sameVersion(resp.Header, t.validator),
		t.total >= 0 && total >= 0 && total != t.total:
		if err := t.reset(); err != nil {
			return err
		}
		return errChanged
	}
	t.joined = true
	t.validator = cmp.Or(t.validator, v)
	if total < 0 {
		return nil // keep the known size
	}
	return t.learn(total)
}

// isWhole reports whether an answer of a part has the whole file.
func isWhole(resp *http.Response) bool {
	start, total, ok := contentRange(resp.Header.Get("Content-Range"))
	return ok && start == 0 && total == resp.ContentLength
}

// endsWithConnection reports whether only the end of the connection ends an answer's body (RFC 9112, 6.3).
func endsWithConnection(resp *http.Response) bool {
	return resp.ProtoMajor == 1 && resp.ContentLength < 0 && len(resp.TransferEncoding) == 0
}

// sameVersion reports whether a part is of the version with this validator. A part repeats the ETag of its file, and
// may leave out its date (RFC 9110, 15.3.7).
func sameVersion(h http.Header, validator string) bool {
	if strings.HasPrefix(validator, `"`) {
		return h.Get("ETag") == validator
	}
	changed := h.Get("Last-Modified")
	return changed == "" || changed == validator
}

// decoded refuses an answer that may be a different encoding of the file. Servers that report an encoding for an
// archive mostly mean the archive's own compression; a known digest decides.
func (t *transfer) decoded(h http.Header) error {
	t.encoding = contentEncoding(h)
	file := strings.ToLower(t.from.URL.Path)
	archive := strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tgz")
	if t.encoding == "" || t.d.Want != "" || t.encoding == "gzip" && archive {
		return nil
	}
	return permanent("the server uses the unrequested encoding %s, and no digest of the file is known: set its sha256",
		Printable(t.encoding))
}

// learn takes the server's size of the file, -1 for none.
func (t *transfer) learn(total int64) error {
	switch {
	case total < 0:
		if t.d.Size < 0 {
			t.total = -1
		}
		return nil
	case t.d.Size >= 0 && total != t.d.Size:
		return permanent("wrong size: expected %d bytes, the server has %d", t.d.Size, total)
	case total > MaxBlob:
		return permanent("the server announces %d bytes, more than a bundle can hold", total)
	}
	t.total = total
	switch {
	case t.counted < 0:
		t.d.Loader.Cache.Count(total-t.prior, 0, 0)
	case t.counted != total:
		t.d.Loader.Cache.Count(total-t.counted, 0, 0)
	}
	t.counted = total
	return nil
}

// copy writes the body and fails if it is shorter or longer than expected.
func (t *transfer) copy(body io.Reader) error {
	buf, ok := t.d.Loader.buffers.Get().(*[]byte)
	if !ok {
		fresh := make([]byte, copyBuffer)
		buf = &fresh
	}
	defer t.d.Loader.buffers.Put(buf)
	limit := t.total
	if limit < 0 {
		limit = t.d.Loader.MaxUnknown
	}
	for {
		n, err := body.Read(*buf)
		if n > 0 {
			if t.offset+int64(n) > limit {
				return t.tooMuch(limit)
			}
			if err := t.write((*buf)[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && t.total >= 0 && t.offset < t.total:
			return fmt.Errorf("short answer: expected %d bytes, got %d: %w", t.total, t.offset, io.ErrUnexpectedEOF)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("after %d bytes: %w", t.offset, requestError(err))
		}
	}
}

func (t *transfer) tooMuch(limit int64) error {
	if t.total < 0 {
		return permanent("server sent no Content-Length and exceeded %d bytes", limit)
	}
	return permanent("wrong size: expected %d bytes, the server sends more", limit)
}

func (t *transfer) write(p []byte) error {
	n, err := t.w.Write(p)
	t.offset += int64(n)
	t.fresh += int64(n)
	t.d.Loader.Cache.Count(0, int64(n), 0)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return &StoreError{Cause: err}
	}
	return nil
}

// validator returns the identification of a file's version for If-Range: a strong ETag, or a modification time old
// enough that no second version of the same second exists (RFC 9110, 8.8).
func validator(h http.Header) string {
	if tag := h.Get("ETag"); tag != "" {
		if strings.HasPrefix(tag, `"`) {
			return tag
		}
		return ""
	}
	changed := h.Get("Last-Modified")
	at, err := http.ParseTime(changed)
	if err != nil {
		return ""
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil || now.Sub(at) < time.Minute {
		return ""
	}
	return changed
}

// contentRange reads "bytes 5-9/10"; total is -1 for "bytes 5-9/*".
func contentRange(value string) (start, total int64, ok bool) {
	span, inBytes := strings.CutPrefix(value, "bytes ")
	span, whole, slash := strings.Cut(span, "/")
	from, to, dash := strings.Cut(span, "-")
	start, err1 := strconv.ParseInt(from, 10, 64)
	end, err2 := strconv.ParseInt(to, 10, 64)
	total = -1
	var err3 error
	if whole != "*" {
		total, err3 = strconv.ParseInt(whole, 10, 64)
	}
	if !inBytes || !slash || !dash || err1 != nil || err2 != nil || err3 != nil || start < 0 || end < start ||
		whole != "*" && end >= total {
		return 0, 0, false
	}
	return start, total, true
}
