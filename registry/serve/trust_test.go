package serve_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

const frameSize = 4 << 20

func fileBundle(t testing.TB, contents map[string][]byte) string {
	b := bundletest.NewBuilder(t)
	for name, c := range contents {
		b.File("https://files.example/"+name, name, nil, c)
	}
	return b.Bundle().Path
}

func blobPath(name string, content []byte) string {
	return "/v2/files.example/" + name + "/blobs/" + string(digest.FromBytes(content))
}

// TestForgedBlob serves a bundle in which a blob's content was replaced by somebody who knows the format.
func TestForgedBlob(t *testing.T) {
	t.Parallel()
	one, three, good := randomBytes(1, frameSize), randomBytes(2, 3*frameSize-7), randomBytes(3, 2*frameSize)
	path := copyFile(t, fileBundle(t, map[string][]byte{"one": one, "three": three, "good": good}))
	bundletest.Forge(t, path, one)
	bundletest.Forge(t, path, three)
	s := start(t, serve.Options{}, path)
	for _, headers := range [][]string{
		nil,
		{"Range: bytes=0-99"},
		{"Range: bytes=4000000-"},
		{"Range: bytes=-1"},
		{"Range: bytes=0-"},
	} {
		for name, content := range map[string][]byte{"one": one, "three": three} {
			for range 2 { // the second time it is known
				r, err := s.try(t.Context(), "GET", blobPath(name, content), headers...)
				whole := err == nil && (r.StatusCode == 200 || r.StatusCode == 206)
				if whole {
					t.Errorf("%s %q: %s with %d bytes", name, headers, r.Status, len(r.body))
				}
				if err == nil && r.code(t) != "UNKNOWN" ||
					len(r.body) > len(content)-int(min(len(content)-1, frameSize/2)) {
					t.Errorf("%s %q: %s with %d bytes: %v", name, headers, r.Status, len(r.body), err)
				}
				if err != nil && (name == "one" || headers != nil && headers[0] != "Range: bytes=0-") {
					t.Errorf("%s %q: %v", name, headers, err)
				}
			}
		}
	}
	if r := s.ask(t, "GET", blobPath("good", good)); !bytes.Equal(r.body, good) {
		t.Errorf("the good blob: %s with %d bytes", r.Status, len(r.body))
	}
	if r := s.ask(t, "GET", "/files/files.example/one"); r.StatusCode != 500 ||
		!strings.Contains(string(r.body), "damaged") {
		t.Errorf("as a file: %s: %s", r.Status, r.body)
	}
	m := string(s.ask(t, "GET", "/metrics").body)
	if !strings.Contains(m, "kkbundle_serve_blobs_damaged 2\n") {
		t.Errorf("metrics:\n%s", m)
	}
	if _, err := serve.New(t.Context(), serve.Options{Bundles: []string{path}, Verify: true}); !errors.Is(err,
		bundle.ErrDamaged) {
		t.Errorf("with Verify: %v", err)
	}
}

// TestChangedOnDisk writes to a bundle while it is served: what is answered completely must be right.
func TestChangedOnDisk(t *testing.T) {
	t.Parallel()
	text := textBytes(1, 5*frameSize)
	stored := randomBytes(2, 5*frameSize)
	for what, change := range map[string]func(f *os.File, size int64) error{
		"overwritten": func(f *os.File, size int64) error {
			_, err := f.WriteAt(randomBytes(9, int(size/2)), size/4)
			return err
		},
		"cut short": func(f *os.File, size int64) error { return f.Truncate(size / 2) },
		"emptied":   func(f *os.File, _ int64) error { return f.Truncate(0) },
		"touched":   func(f *os.File, size int64) error { return f.Truncate(size) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := copyFile(t, fileBundle(t, map[string][]byte{"text": text, "stored": stored}))
			s := start(t, serve.Options{Verify: true}, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err == nil {
				err = change(f, info.Size())
			}
			if err != nil {
				t.Fatal(err)
			}
			failed := 0
			for name, content := range map[string][]byte{"text": text, "stored": stored} {
				for _, header := range []string{
					"X: y", "Range: bytes=100-200", "Range: bytes=9000000-9999999",
					"Range: bytes=-5000000",
				} {
					r, err := s.try(t.Context(), "GET", blobPath(name, content), header)
					if err != nil || r.StatusCode >= 500 {
						failed++
						continue
					}
					from := 0
					if cr := r.Header.Get("Content-Range"); cr != "" {
						if _, err := fmt.Sscanf(cr, "bytes %d-", &from); err != nil {
							t.Fatal(err)
						}
					}
					if !bytes.Equal(r.body, content[from:from+len(r.body)]) {
						t.Errorf("%s %s: wrong content", name, header)
					}
				}
			}
			if (failed == 0) != (what == "touched") {
				t.Errorf("%d requests failed", failed)
			}
			if !strings.Contains(s.log.String(), "was modified") {
				t.Errorf("nothing is logged:\n%s", s.log)
			}
		})
	}
}

// TestRandomRanges compares a thousand ranges, and holds that no frame is read that has nothing of the range.
func TestRandomRanges(t *testing.T) {
	t.Parallel()
	text, stored := textBytes(1, 5*frameSize+12345), randomBytes(2, 5*frameSize+1)
	small := textBytes(3, 5000)
	s := start(t, serve.Options{Verify: true}, fileBundle(t, map[string][]byte{
		"text": text, "stored": stored,
		"small": small,
	}))
	random := rand.New(rand.NewSource(1))
	names, contents := []string{"text", "stored", "small"}, [][]byte{text, stored, small}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = blobPath(name, contents[i])
		s.ask(t, "GET", paths[i], "Range: bytes=0-0") // manifests are read
	}
	for i := range 1000 {
		c := contents[i%3]
		from := random.Intn(len(c))
		n := 1 + random.Intn(min(len(c)-from, 1<<random.Intn(17)))
		header := fmt.Sprintf("Range: bytes=%d-%d", from, from+n-1)
		switch i % 7 {
		case 0:
			header, n = fmt.Sprintf("Range: bytes=%d-", max(from, len(c)-100000)), len(c)-max(from, len(c)-100000)
			from = len(c) - n
		case 1:
			header, from = fmt.Sprintf("Range: bytes=-%d", n), len(c)-n
		}
		before := decoded(t, s)
		r := s.ask(t, "GET", paths[i%3], header)
		if r.StatusCode != 206 || !bytes.Equal(r.body, c[from:from+n]) || r.ContentLength != int64(n) {
			t.Fatalf("%s %s: %s with %d bytes, want %d", names[i%3], header, r.Status, len(r.body), n)
		}
		if frames := decoded(t, s) - before; frames > (from+n-1)/frameSize-from/frameSize+1 {
			t.Fatalf("%s %s: %d frames were read", names[i%3], header, frames)
		}
	}
}

func decoded(t *testing.T, s *site) int {
	t.Helper()
	return metric(t, s, "kkbundle_serve_frames_decoded_total")
}

func metric(t *testing.T, s *site, name string) int {
	t.Helper()
	for line := range strings.Lines(string(s.ask(t, "GET", "/metrics").body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// TestSlowClients has far more clients than there is memory for stop reading in the middle, and some go away: another
// client gets everything.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	content := textBytes(1, 8*frameSize)
	s := start(t, serve.Options{}, fileBundle(t, map[string][]byte{"x": content}))
	address := strings.TrimPrefix(s.URL, "http://")
	for i := range 60 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", blobPath("x", content)); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := s.ask(t, "GET", blobPath("x", content)); !bytes.Equal(r.body, content) {
		t.Errorf("%s with %d bytes", r.Status, len(r.body))
	}
}

// TestReload replaces a bundle while one of its blobs is being sent.
func TestReload(t *testing.T) {
	t.Parallel()
	old, now := textBytes(1, 10*frameSize), textBytes(2, 1000)
	path := copyFile(t, fileBundle(t, map[string][]byte{"x": old, "gone": randomBytes(5, 10)}))
	s := start(t, serve.Options{}, path)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+blobPath("x", old), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Do(req) // as much is on its way as buffers hold, far less than all
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := s.server.Reload(t.Context()); err != nil { // nothing changed
		t.Fatal(err)
	}
	if err := os.Rename(copyFile(t, fileBundle(t, map[string][]byte{"x": now})), path); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := s.ask(t, "GET", "/files/files.example/x"); !bytes.Equal(r.body, now) {
		t.Errorf("after reloading: %s with %d bytes", r.Status, len(r.body))
	}
	if r := s.ask(t, "GET", "/v2/files.example/gone/tags/list"); r.StatusCode != 404 {
		t.Errorf("what is gone: %s", r.Status)
	}
	if n := openFiles(t, path); n != 2 {
		t.Errorf("%d files are open, want the old and the new", n)
	}
	if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the transfer that ran: %d bytes: %v", len(got), err)
	}
	for openFiles(t, path) != 1 { // the server closes the old one a moment after it has sent the end
		time.Sleep(time.Millisecond)
	}
	if err := os.WriteFile(path+".new", []byte("no bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Reload(t.Context()); !errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("a file that is no bundle was taken up: %v", err)
	}
	if r := s.ask(t, "GET", "/files/files.example/x"); !bytes.Equal(r.body, now) {
		t.Errorf("after a reload that failed: %s with %d bytes", r.Status, len(r.body))
	}
}

// openFiles counts this process's open files that are, or were, at path.
func openFiles(t *testing.T, path string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(links) == 0 {
		t.Skip("there is no /proc")
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.TrimSuffix(to, " (deleted)") == path {
			n++
		}
	}
	return n
}

// TestShutdown lets a transfer finish that runs when the server is told to end.
func TestShutdown(t *testing.T) {
	t.Parallel()
	content := textBytes(1, 10*frameSize)
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{fileBundle(t, map[string][]byte{"x": content})}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetLimits(time.Hour) // a busy machine may need longer than the 20 seconds that transfers have at the end
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l, nil) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+
		l.Addr().String()+blobPath("x", content), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cancel()
	if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHostileRequests holds that a header has a bound, that a body ends a connection, and that the server goes on.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{bundletest.New(t).Path}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l, nil) }()
	for request, want := range map[string]string{
		"GET /v2/ HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n": "431",
		"PUT /v2/a/manifests/b HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{":  "405",
		"GET /v2/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n":             "200",
		"GET /v2/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":      "307",
		"GET /files/%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                "404",
		"nonsense\r\n\r\n": "400",
	} {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Logf("%.40q: %v", request, err) // the answer may come before the request has ended
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Logf("%.40q: %v", request, err)
		}
		line := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, line); err != nil || !strings.HasSuffix(string(line), want) {
			t.Errorf("%.40q: %q, want %s: %v", request, line, want, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
