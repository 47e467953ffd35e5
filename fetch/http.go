package fetch

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
	// maxBlob bounds a blob of unknown size; bundles cannot hold larger ones.
	maxBlob = 1 << 53
	// maxUnknown bounds a file of unknown size, which could be endless. The largest installation images have some 10
	// GiB.
	maxUnknown = 64 << 30
)

// errChanged means the file changed upstream during the download; the download restarts.
var errChanged = errors.New("the file changed upstream during the download")

// errMismatch means a complete blob has the wrong content.
var errMismatch = errors.New("wrong content (nothing of it was kept)")

// A downloader brings blobs into the cache.
type downloader struct {
	sender     *sender
	cache      *cache
	dirs       *sourceDirs
	records    *records // nil remembers nothing
	maxUnknown int64
	buffers    sync.Pool // of *[]byte
}

// fetchBlob brings a blob into the store unless it is there. The same blob is never transferred twice at once.
func (l *downloader) fetchBlob(ctx context.Context, d *download) error {
	_, err := once(&l.cache.flights, "blob "+d.want.String(), func() (ocispec.Descriptor, error) {
		size, ok, err := l.cache.store.Stat(ctx, d.want)
		if err != nil {
			return ocispec.Descriptor{}, &storeError{err: err}
		}
		if ok && d.size >= 0 && size != d.size {
			return ocispec.Descriptor{}, fmt.Errorf("%s: wrong size: expected %d bytes, got %d", d.name, d.size, size)
		}
		if ok {
			return ocispec.Descriptor{Digest: d.want, Size: size}, nil
		}
		if desc, ok, err := l.dirs.find(ctx, d); err != nil || ok {
			return desc, err
		}
		return d.run(ctx)
	})
	return err
}

// A download is the reading of one blob from the first place that has it, with retries.
type download struct {
	loader *downloader
	places []origin
	name   string        // the upstream URL or reference, for errors
	names  []string      // possible names in a directory
	want   digest.Digest // "" if unknown
	size   int64         // -1 if unknown
	from   string        // the override's address; "" for none
	// remember records the file for later runs, and first checks whether it is unchanged.
	remember bool
	// planned means that the size is already in the session's total.
	planned bool
	// html means that the server called the last answer a page.
	html bool
}

// An origin is a server with the address of one file, and the means to ask for it.
type origin struct {
	peer   *peer
	url    *url.URL
	client func(context.Context) (*http.Client, error)
	header http.Header
	// explain adds cause and remedy to an answer.
	explain func(error) error
}

func (o origin) request(ctx context.Context, method string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, o.url.String(), http.NoBody)
	if err == nil {
		maps.Copy(req.Header, o.header)
	}
	return req, err
}

// each calls f for one origin after the other until it succeeds. Its error has the file and the places.
func (d *download) each(ctx context.Context, f func(o origin) error) error {
	peers := make([]*peer, len(d.places))
	for i, o := range d.places {
		peers[i] = o.peer
	}
	err := d.loader.sender.inTurn(ctx, peers, func(i int) error {
		err := d.places[i].explained(f(d.places[i]))
		if err != nil && len(d.places) > 1 {
			return fmt.Errorf("from %s: %w", d.places[i].url.Redacted(), err)
		}
		return err
	})
	var store *storeError
	switch {
	case err == nil:
		return nil
	case len(d.places) != 1 || !d.places[0].peer.isMirror() || errors.As(err, &store):
		return fmt.Errorf("%s: %w", d.name, err)
	}
	return fmt.Errorf("%s (from mirror %s): %w", d.name, d.places[0].url.Redacted(), err)
}

func (o origin) explained(err error) error {
	if _, final := errors.AsType[*permanentError](err); web.Status(err) != nil && !final {
		return o.explain(err)
	}
	return err
}

// run brings the blob into the store. Bytes read before an error are kept for the next run, and for the next place.
func (d *download) run(ctx context.Context) (desc ocispec.Descriptor, err error) {
	t := &transfer{d: d, total: d.size, counted: d.size}
	if !d.planned {
		t.counted = -1
	}
	err = d.each(ctx, func(o origin) error {
		t.from, t.total = o, d.size
		desc, err = t.run(ctx)
		return err
	})
	return desc, err
}

// A transfer is the state of a download between its requests.
type transfer struct {
	d         *download
	from      origin
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
		t.d.loader.cache.count(0, 0, t.last.Size)
		return t.last.descriptor(), nil
	}
	if joined && errors.Is(err, errMismatch) {
		// Pieces of different answers may not belong together; reading again from the start decides.
		t.d.loader.sender.log.WarnContext(ctx, "resumed content does not fit together, starting over", "what", t.d.name)
		desc, _, err = t.once(ctx)
	}
	return desc, err
}

// once reads and commits. It reports whether the committed blob came in several pieces.
func (t *transfer) once(ctx context.Context) (desc ocispec.Descriptor, joined bool, err error) {
	if t.d.want != "" {
		if err := t.begin(ctx, t.d.want.String()); err != nil {
			return desc, false, err
		}
	}
	defer func() {
		if t.w == nil {
			return
		}
		if closeErr := t.w.Close(); err == nil && closeErr != nil {
			err = &storeError{err: closeErr}
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
	desc, err = t.w.Commit(ctx, t.total, t.d.want)
	switch {
	case err == nil:
		if t.counted < 0 {
			t.d.loader.cache.count(t.fresh, 0, 0)
		}
		if t.d.remember && t.validator != "" && !t.d.html {
			t.d.loader.records.memorize(ctx, memory{t.from.url.String(), t.validator, desc.Digest, desc.Size})
		}
		return desc, t.joined, nil
	case context.Cause(ctx) != nil:
		return desc, false, context.Cause(ctx)
	case isSystem(err):
		return desc, false, &storeError{err: err}
	}
	if t.encoding != "" {
		return desc, t.joined, fmt.Errorf("%w: the server uses the unrequested encoding %s: %w", errMismatch,
			printable(t.encoding), err)
	}
	return desc, t.joined, fmt.Errorf("%w: %w", errMismatch, err)
}

// isSystem reports whether err is about the disk rather than the content.
func isSystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

func (t *transfer) begin(ctx context.Context, key string) error {
	w, offset, err := t.d.loader.cache.store.Begin(ctx, key)
	if err != nil {
		return &storeError{err: err}
	}
	t.w, t.offset, t.prior, t.best, t.joined = w, offset, offset, offset, offset > 0
	if t.counted >= 0 {
		t.d.loader.cache.count(-offset, 0, 0)
	}
	t.d.loader.cache.count(0, 0, offset)
	return nil
}

// reset starts over.
func (t *transfer) reset() error {
	if t.w == nil {
		return nil
	}
	if err := t.w.Reset(); err != nil {
		return &storeError{err: err}
	}
	t.uncount()
	t.offset, t.validator, t.joined = 0, "", false
	return nil
}

// uncount removes this blob's surplus from the counters.
func (t *transfer) uncount() {
	if t.counted >= 0 {
		t.d.loader.cache.count(t.prior, 0, 0)
	}
	t.d.loader.cache.count(0, -t.fresh, -t.prior)
	t.prior, t.fresh = 0, 0
}

// read sends requests until the writer has the whole blob.
func (t *transfer) read(ctx context.Context) error {
	a := attempts{sender: t.d.loader.sender, peer: t.from.peer, what: t.d.name}
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
func (t *transfer) provable() bool { return t.d.want != "" || t.validator != "" }

// request sends one request and writes the answer. It returns false without an error if another request is needed at
// once.
func (t *transfer) request(ctx context.Context) (whole bool, err error) {
	req, err := t.from.request(ctx, http.MethodGet)
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
	if t.last = nil; t.d.remember && t.w == nil {
		if t.last = t.d.loader.records.recall(ctx, t.from.url.String()); t.last != nil {
			t.last.ask(req.Header)
		}
	}
	client, err := t.from.client(ctx)
	if err != nil {
		return false, &permanentError{err} // retried enough, and explained
	}
	resp, err := t.d.loader.sender.send(ctx, t.from.peer, client, req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if err := t.check(resp); err != nil {
		return false, err
	}
	t.d.html = content.SaysHTML(resp.Header)
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
func (t *transfer) key() string { return partKey(t.from.url, t.validator, t.total) }

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
	switch resp.StatusCode {
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
			return err
		}
		if t.d.want == "" && endsWithConnection(resp) {
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
		t.d.want == "" && !sameVersion(resp.Header, t.validator),
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
	file := strings.ToLower(t.from.url.Path)
	archive := strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tgz")
	if t.encoding == "" || t.d.want != "" || t.encoding == "gzip" && archive {
		return nil
	}
	return permanent("the server uses the unrequested encoding %s, and no digest of the file is known: set its sha256",
		printable(t.encoding))
}

// learn takes the server's size of the file, -1 for none.
func (t *transfer) learn(total int64) error {
	switch {
	case total < 0:
		if t.d.size < 0 {
			t.total = -1
		}
		return nil
	case t.d.size >= 0 && total != t.d.size:
		return permanent("wrong size: expected %d bytes, the server has %d", t.d.size, total)
	case total > maxBlob:
		return permanent("the server announces %d bytes, more than a bundle can hold", total)
	}
	t.total = total
	switch {
	case t.counted < 0:
		t.d.loader.cache.count(total-t.prior, 0, 0)
	case t.counted != total:
		t.d.loader.cache.count(total-t.counted, 0, 0)
	}
	t.counted = total
	return nil
}

// copy writes the body and fails if it is shorter or longer than expected.
func (t *transfer) copy(body io.Reader) error {
	buf, ok := t.d.loader.buffers.Get().(*[]byte)
	if !ok {
		fresh := make([]byte, copyBuffer)
		buf = &fresh
	}
	defer t.d.loader.buffers.Put(buf)
	limit := t.total
	if limit < 0 {
		limit = t.d.loader.maxUnknown
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
	t.d.loader.cache.count(0, int64(n), 0)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return &storeError{err: err}
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
