package download

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

// A server has one file, and a list of faults: each request uses up the first, and the rest are served well.
type server struct {
	*httptest.Server
	mu     sync.Mutex // of everything below: a handler may outlive its client
	data   []byte
	etag   string
	faults []fault
	log    []string // of requests: method and range
}

// A fault answers a request in place of the server.
type fault func(s *server, w http.ResponseWriter, r *http.Request)

func newServer(t testing.TB, data []byte) *server {
	t.Helper()
	s := &server{data: data, etag: `"one"`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP serves the file with net/http's own ranges.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.log = append(s.log, strings.TrimSpace(r.Method+" "+r.Header.Get("Range")))
	serve := fault((*server).well)
	if len(s.faults) > 0 {
		serve, s.faults = s.faults[0], s.faults[1:]
	}
	s.mu.Unlock()
	serve(s, w, r)
}

func (s *server) well(w http.ResponseWriter, r *http.Request) {
	data, etag := s.file()
	w.Header().Set("ETag", etag)
	http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(data))
}

// file returns the file and its validator.
func (s *server) file() (data []byte, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data, s.etag
}

// replace makes another file of it.
func (s *server) replace(data []byte, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.etag = data, etag
}

// fail sets the faults of the next requests, and forgets those so far.
func (s *server) fail(faults ...fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.log = faults, nil
}

// requests returns the method and range of each request since fail.
func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// cut ends the connection after n bytes of the body.
func cut(n int) fault {
	return func(s *server, w http.ResponseWriter, r *http.Request) {
		s.well(&cutting{w, n}, r)
	}
}

type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.left -= n
	if _, err := c.ResponseWriter.Write(b[:n]); err != nil {
		return 0, err
	}
	if c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush() // the connection ends anyway
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

// status answers with a status.
func status(code int) fault {
	return func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// whole answers with the whole file, whatever was asked for.
func whole(s *server, w http.ResponseWriter, r *http.Request) {
	r.Header.Del("Range")
	s.well(w, r)
}

// changed replaces the file before the answer.
func changed(data []byte, etag string) fault {
	return func(s *server, w http.ResponseWriter, r *http.Request) {
		s.replace(data, etag)
		s.well(w, r)
	}
}

// another sends a range with wrong headers.
func another(contentRange, etag string) fault {
	return func(s *server, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", contentRange)
		w.Header().Set("ETag", etag)
		w.WriteHeader(http.StatusPartialContent)
		data, _ := s.file()
		_, _ = w.Write(make([]byte, len(data)/2)) // wrong bytes
	}
}

// endless sends a body without a length and ends the connection.
func endless(s *server, w http.ResponseWriter, _ *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	data, _ := s.file()
	_, _ = fmt.Fprintf(rw, "HTTP/1.0 200 OK\r\nETag: \"one\"\r\n\r\n%s", data[:len(data)/2])
	_, _ = rw.Flush(), c.Close() // the client has the rest
}

// stalled sends some bytes and then nothing, until a request continues after them: a client that gives up before it
// has them begins again.
func stalled(s *server, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Range") != "" {
		s.well(w, r)
		return
	}
	s.mu.Lock()
	s.faults = append([]fault{stalled}, s.faults...)
	s.mu.Unlock()
	data, etag := s.file()
	w.Header().Set("ETag", etag)
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data[:1000])
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func compressed(s *server, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	data, _ := s.file()
	_, _ = w.Write(data)
}

func random(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b) //nolint:gosec // must repeat
	return b
}

// client returns a client that takes no pause of a busy machine for a stall: requests are as the test expects them.
func client() *Client {
	c := NewClient(&http.Transport{}, "", "")
	c.wait, c.idle = web.Backoff{First: time.Millisecond, Longest: 30 * time.Millisecond}, time.Hour
	return c
}

// at returns the target at a path.
func at(t *testing.T, path string) target {
	t.Helper()
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() }) // only used
	return target{dir, filepath.Base(path)}
}

const fileSize = 700_000

func TestFileArrivesThroughFaults(t *testing.T) {
	t.Parallel()
	first, second := random(1, fileSize), random(2, fileSize+5)
	for name, c := range map[string]struct {
		faults []fault
		etag   string
		want   []byte
		log    string // requests, joined
	}{
		"none": {nil, `"one"`, first, "GET"},
		"cut in the middle": {
			[]fault{cut(300_000), cut(100_000)},
			`"one"`, first,
			"GET, GET bytes=300000-, GET bytes=400000-",
		},
		"503 then ok": {
			[]fault{status(503), status(429), status(502)},
			`"one"`, first,
			"GET, GET, GET, GET",
		},
		"503 for the rest": {
			[]fault{cut(300_000), status(503)},
			`"one"`, first,
			"GET, GET bytes=300000-, GET bytes=300000-",
		},
		"changed between": {
			[]fault{cut(300_000), changed(second, `"two"`)},
			`"one"`, second,
			"GET, GET bytes=300000-, GET",
		},
		"changed, a false 206": {
			[]fault{cut(300_000), another("bytes 300000-699999/700000", `"two"`)},
			`"one"`,
			first, "GET, GET bytes=300000-, GET",
		},
		"206 of another range": {
			[]fault{cut(300_000), another("bytes 0-699999/700000", `"one"`)},
			`"one"`,
			first, "GET, GET bytes=300000-, GET",
		},
		"206 of another size": {
			[]fault{cut(300_000), another("bytes 300000-649999/650000", `"one"`)},
			`"one"`,
			first, "GET, GET bytes=300000-, GET",
		},
		"200 in place of 206": {[]fault{cut(300_000), whole}, `"one"`, first, "GET, GET bytes=300000-, GET"},
		"416": {
			[]fault{cut(300_000), status(416)},
			`"one"`, first,
			"GET, GET bytes=300000-, GET",
		},
		"weak validator": {[]fault{cut(300_000)}, `W/"one"`, first, "GET, GET"},
		"no validator":   {[]fault{cut(300_000)}, "", first, "GET, GET"},
		"many cuts with some progress": {[]fault{
			cut(90_000), cut(90_000), cut(90_000), cut(90_000), cut(90_000),
			cut(90_000), cut(90_000),
		}, `"one"`, first, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, first)
			s.replace(first, c.etag)
			s.fail(c.faults...)
			path := filepath.Join(t.TempDir(), "file")
			if err := client().file(t.Context(), s.URL+"/x", at(t, path), nil, nil); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("the file is wrong: %d bytes, %v", len(got), err)
			}
			if log := strings.Join(s.requests(), ", "); c.log != "" && log != c.log {
				t.Errorf("requests: %s; want %s", log, c.log)
			}
		})
	}
}

// TestFileArrivesThroughAStall gives the server up after a moment. On a busy machine that may happen more often than
// once.
func TestFileArrivesThroughAStall(t *testing.T) {
	t.Parallel()
	data := random(1, fileSize)
	s := newServer(t, data)
	s.fail(stalled)
	c := client()
	c.idle, c.tries = 300*time.Millisecond, math.MaxInt
	path := filepath.Join(t.TempDir(), "file")
	if err := c.file(t.Context(), s.URL+"/x", at(t, path), nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file is wrong: %d bytes, %v", len(got), err)
	}
	if log := s.requests(); log[0] != "GET" || !slices.Contains(log, "GET bytes=1000-") {
		t.Errorf("requests: %q", log)
	}
}

func TestFileContinuesInALaterRun(t *testing.T) {
	t.Parallel()
	first, second := random(1, fileSize), random(2, fileSize)
	for name, c := range map[string]struct {
		between func(s *server, path string)
		want    []byte
		log     string
	}{
		"the same file": {func(*server, string) {}, first, "GET bytes=300000-"},
		"it changed": {
			func(s *server, _ string) { s.replace(second, `"two"`) }, second,
			"GET bytes=300000-, GET",
		},
		"it is gone": {func(s *server, _ string) { s.fail(status(404)) }, nil, "GET bytes=300000-"},
		"the state is bad": {
			func(_ *server, path string) { _ = os.WriteFile(path+stateSuffix, []byte("{"), 0o600) },
			first, "GET",
		},
		"no state": {func(_ *server, path string) { _ = os.Remove(path + stateSuffix) }, first, "GET"},
		"a longer file": {
			func(_ *server, path string) { _ = os.WriteFile(path, make([]byte, fileSize+1), 0o600) },
			first, "GET",
		},
		"whole, unchanged": {func(_ *server, path string) { _ = os.WriteFile(path, first, 0o600) }, first, "GET"},
		"whole, changed": {func(s *server, path string) {
			_ = os.WriteFile(path, first, 0o600)
			s.replace(second, `"two"`)
		}, second, "GET, GET"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, first)
			path := filepath.Join(t.TempDir(), "file")
			one := client()
			one.tries = 1
			s.fail(cut(300_000))
			if err := one.file(t.Context(), s.URL+"/x", at(t, path), nil, nil); err == nil {
				t.Fatal("no error")
			}
			s.fail()
			c.between(s, path)
			err := client().file(t.Context(), s.URL+"/x", at(t, path), nil, nil)
			got, _ := os.ReadFile(path)
			if c.want == nil && !isMissing(err) || c.want != nil && (err != nil || !bytes.Equal(got, c.want)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if log := strings.Join(s.requests(), ", "); log != c.log {
				t.Errorf("requests: %s; want %s", log, c.log)
			}
		})
	}
}

func TestFileFails(t *testing.T) {
	t.Parallel()
	var always []fault
	for range 100 {
		always = append(always, status(503))
	}
	closed := slices.Repeat([]fault{func(*server, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		100)
	data := random(1, fileSize)
	var flapping []fault
	for i := range 100 {
		flapping = append(flapping, func(s *server, w http.ResponseWriter, r *http.Request) {
			s.replace(data, fmt.Sprintf(`"%d"`, i))
			cut(1000)(s, w, r)
		})
	}
	for name, c := range map[string]struct {
		faults []fault
		want   string
	}{
		"no such file":      {[]fault{status(404)}, "404 Not Found"},
		"not allowed":       {[]fault{status(403)}, "403 Forbidden"},
		"down":              {always, "503 Service Unavailable"},
		"no length, no end": {[]fault{endless}, "neither the length nor the end"},
		"compressed":        {[]fault{compressed}, "the server compresses the file (gzip)"},
		"closed at once":    {closed, "EOF"},
		"always another":    {flapping, "the file changed on the server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, data)
			s.fail(c.faults...)
			err := client().file(t.Context(), s.URL+"/x?token=secret", at(t, filepath.Join(t.TempDir(), "file")), nil,
				nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v; want %q, and no token", err, c.want)
			}
			if n := len(s.requests()); n > 20 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestFileFollowsRedirectsButNotOutOfTLS(t *testing.T) {
	t.Parallel()
	data := random(1, fileSize)
	s := newServer(t, data)
	s.fail(cut(300_000))
	front := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, s.URL+"/there", http.StatusFound) }
	plainFront := httptest.NewServer(http.HandlerFunc(front))
	t.Cleanup(plainFront.Close)
	path := filepath.Join(t.TempDir(), "file")
	if err := client().file(t.Context(), plainFront.URL+"/x", at(t, path), nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got := strings.Join(s.requests(), ", "); got != "GET, GET bytes=300000-" {
		t.Errorf("requests: %s", got)
	}
	secure := httptest.NewTLSServer(http.HandlerFunc(front))
	t.Cleanup(secure.Close)
	c := client()
	c.http.Transport = secure.Client().Transport
	err := c.file(t.Context(), secure.URL+"/x", at(t, filepath.Join(t.TempDir(), "file")), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "which is not HTTPS") {
		t.Errorf("error %v", err)
	}
}

func TestFileEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newServer(t, random(1, fileSize))
	s.fail(stalled)
	c := client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(t.TempDir(), "file")
	arrived := func(done, _ int64) {
		if done >= 1000 {
			cancel()
		}
	}
	if err := c.file(ctx, s.URL+"/x", at(t, path), nil, arrived); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 1000 {
		t.Errorf("the part is gone: %v", err)
	}
}

func TestRemoteReadsRanges(t *testing.T) {
	t.Parallel()
	data := random(1, 3*fileSize)
	s := newServer(t, data)
	s.fail(status(503), cut(100_000))
	r, err := client().Open(t.Context(), s.URL+"/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 100, len(data) - 10, len(data) / 2, len(data) - 300_000} {
		for _, n := range []int{1, 10, 300_000} {
			p := make([]byte, n)
			got, err := r.ReadAt(p, int64(at))
			if want := data[at:min(at+n, len(data))]; !bytes.Equal(p[:got], want) || (err != nil) != (len(want) < n) ||
				err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%d bytes at %d: %d bytes, %v", n, at, got, err)
			}
		}
	}
	before := len(s.requests())
	if _, err := r.ReadAt(make([]byte, 1000), 0); err != nil || len(s.requests()) != before {
		t.Errorf("%d requests more, %v", len(s.requests())-before, err)
	}
	s.replace(random(2, len(data)), `"two"`)
	if _, err := r.ReadAt(make([]byte, 10), int64(blockSize)*5/2); err == nil ||
		!strings.Contains(err.Error(), "changed on the server") {
		t.Errorf("error %v", err)
	}
	s.fail(whole)
	if _, err := client().Open(t.Context(), s.URL+"/x"); err == nil ||
		!strings.Contains(err.Error(), "does not send ranges") {
		t.Errorf("error %v", err)
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://h/a/site-1.4.0.kkb": "site-1.4.0.kkb", "https://h/site.kkb.001": "site.kkb",
		"https://h/site.kkb.parts.json": "site.kkb",
		"https://h/x.kkb?token=a/b":     "x.kkb", "https://h/x.kkb.age": "x.kkb.age", "https://h/a%2Fb.kkb": "b.kkb",
		"https://h/": "", "https://h": "", "https:///x.kkb": "", "https://h/.hidden": "", "https://h/..": "",
	} {
		if got, err := Name(address); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", address, got, err)
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("https://h/a%2f..%2fb.kkb")
	f.Fuzz(func(t *testing.T, address string) {
		if name, err := Name(address); err == nil && (filepath.Base(name) != name || strings.HasPrefix(name, ".")) {
			t.Errorf("%q gives %q", address, name)
		}
	})
}

func FuzzSum(f *testing.F) {
	f.Add([]byte(strings.Repeat("ab", 32) + "  x.kkb\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := parseSum(data); err == nil && d.Validate() != nil {
			t.Errorf("%q gives %q", data, d)
		}
	})
}
