package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/registry/serve"
)

// impatience is how long the server of these tests waits for a client. Nothing fails on a machine that is slower than
// that: what is held is that a wait ends, not when.
const impatience = 200 * time.Millisecond

// listen starts a server that listens, waits for clients no longer than limit, and ends with the test or with stop.
func listen(t *testing.T, limit time.Duration, path string) (s *serve.Server, address string, stop func() error) {
	t.Helper()
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.SetLimits(limit)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l, nil) }()
	return s, l.Addr().String(), func() error { cancel(); return <-ended }
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // for a server that never lets go
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// TestSlowHeaders has clients that begin a request and never end it, send a body that never comes, or keep a
// connection for nothing: the server ends each by itself.
func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	content := randomBytes(1, 100)
	_, address, stop := listen(t, impatience, fileBundle(t, map[string][]byte{"x": content}))
	for name, request := range map[string]string{
		"nothing":          "",
		"half a line":      "GET /v2/ HT",
		"half a header":    "GET /v2/ HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"a body to come":   "PUT /v2/a/manifests/b HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
		"no next request":  "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"a blob, and idle": "GET " + blobPath("x", content) + " HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, address)
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the server keeps the connection")
			}
		})
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestStalledReader has a client that stops reading a large blob: the server lets go of it.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	content := textBytes(1, 8*frameSize)
	s, address, stop := listen(t, impatience, fileBundle(t, map[string][]byte{"x": content}))
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", blobPath("x", content))
	for served := false; !served; { // the server may be too impatient to hear a request out on a machine that is busy
		stalled := dial(t, address)
		if err := stalled.SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(stalled, request); err != nil {
			t.Fatal(err)
		}
		_, err := io.ReadFull(stalled, make([]byte, 1))
		served = err == nil
	}
	for inFlight(t, s) > 1 { // this question is one; that of a server which waits for ever ends with the test's time
		time.Sleep(impatience / 10)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// inFlight asks the server how many requests it works on.
func inFlight(t *testing.T, s *serve.Server) (n int) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		if rest, ok := strings.CutPrefix(line, "kkbundle_serve_requests_in_flight "); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no such metric:\n%s", w.Body)
	return 0
}

// TestSteadyReader holds that a client has time for each chunk anew, so that a slow one that goes on reading gets
// everything.
func TestSteadyReader(t *testing.T) {
	t.Parallel()
	content := textBytes(1, 1<<20)
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{fileBundle(t, map[string][]byte{"x": content})}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, blobPath("x", content), http.NoBody))
	if w.Code != http.StatusOK || w.Body.Len() != len(content) {
		t.Fatalf("%d with %d bytes", w.Code, w.Body.Len())
	}
	if want := len(content) / (32 << 10); w.writes != want || len(w.set) < want || w.late {
		t.Errorf("%d writes and %d deadlines, want %d; a write without a new one: %v", w.writes, len(w.set), want,
			w.late)
	}
}

// deadlines is a connection that notes which deadlines it gets.
type deadlines struct {
	*httptest.ResponseRecorder
	set    []time.Time
	writes int
	used   int  // deadlines before the last write
	late   bool // a write had no deadline of its own
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	d.late = d.late || len(d.set) == d.used || time.Until(d.set[len(d.set)-1]) < 10*time.Second
	d.writes, d.used = d.writes+1, len(d.set)
	return d.ResponseRecorder.Write(b)
}

// TestStalledReadersNeedLittleMemory has 100 clients stop reading in the middle of a range of a compressed blob, and
// measures the memory that this takes on both sides, beyond the frames that one client takes. containerd has three
// such requests for each image that it pulls.
func TestStalledReadersNeedLittleMemory(t *testing.T) {
	const clients, each = 100, 90 << 10
	content := textBytes(1, 4*frameSize)
	path := blobPath("x", content)
	_, address, stop := listen(t, time.Minute, fileBundle(t, map[string][]byte{"x": content}))
	t.Cleanup(func() { // after the clients have ended
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	fixed := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		set := func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 128<<10) }
		if refused := c.Control(set); refused != nil {
			return refused
		}
		return err
	}}
	stall := func() {
		c, err := fixed.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		const status = "HTTP/1.1 206 Partial Content\r\n"
		answer := make([]byte, len(status))
		if _, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nRange: bytes=4-\r\n\r\n", path); err == nil {
			_, err = io.ReadFull(c, answer)
		}
		if err != nil || string(answer) != status {
			t.Fatalf("%q, %v", answer, err)
		}
	}
	stall()
	before := memory()
	for range clients {
		stall()
	}
	more := (int64(memory()) - int64(before)) / clients
	t.Logf("%d bytes for each client", more)
	if more > each {
		t.Errorf("%d KiB for each client, at most %d are allowed", more>>10, each>>10)
	}
}

// memory returns the bytes of the heap and of goroutines' stacks.
func memory() uint64 {
	for range 3 { // pools keep what they have for one more
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
