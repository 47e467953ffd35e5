package serve_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

const benchSize = 256 << 20

// BenchmarkPull compares the server with net/http's file server on the same content, each pulled by one client and by
// eight at once, over loopback. Blobs were checked before: a server does that once.
func BenchmarkPull(b *testing.B) {
	x := bundletest.NewBuilder(b)
	stored, text := randomBytes(1, benchSize), textBytes(2, benchSize)
	x.File("https://files.example/stored", "stored", nil, stored)
	x.File("https://files.example/text", "text", nil, text)
	s := start(b, serve.Options{Verify: true}, x.Bundle().Path)
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stored"), stored, 0o600); err != nil {
		b.Fatal(err)
	}
	static := httptest.NewServer(http.FileServer(http.Dir(dir)))
	b.Cleanup(static.Close)
	blob := func(content []byte) string {
		name := "stored"
		if content[0] == text[0] {
			name = "text"
		}
		return s.URL + "/v2/files.example/" + name + "/blobs/" + string(digest.FromBytes(content))
	}
	for _, clients := range []int{1, 8} {
		for name, url := range map[string]string{
			"static": static.URL + "/stored", "stored": blob(stored),
			"compressed": blob(text),
		} {
			b.Run(fmt.Sprintf("%s/clients=%d", name, clients), func(b *testing.B) {
				b.SetBytes(int64(clients) * benchSize)
				before := processorTime(b)
				for b.Loop() {
					pullAll(b, url, clients)
				}
				spent := processorTime(b) - before
				b.ReportMetric(spent.Seconds()*(1<<30)/float64(b.N*clients*benchSize), "cpu-s/GiB")
			})
		}
	}
}

// processorTime is that of client and server together, which other work on the machine does not change.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pullAll has clients pull the same address at once; each reads as much at a time as a client that writes to a file.
func pullAll(b *testing.B, url string, clients int) {
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			defer res.Body.Close()
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, 256<<10))
			if err != nil || n != benchSize {
				b.Errorf("%s: %d bytes: %v", res.Status, n, err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkReady is how long it takes from nothing to the first answer.
func BenchmarkReady(b *testing.B) {
	x := bundletest.NewBuilder(b)
	for i := range 2000 {
		x.File(fmt.Sprintf("https://files.example/%d", i), "it", nil, randomBytes(int64(i), 100))
	}
	path := x.Bundle().Path
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			r, err := bundle.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			if err := r.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first-answer", func(b *testing.B) {
		for b.Loop() {
			s, err := serve.New(b.Context(), serve.Options{Bundles: []string{path}})
			if err != nil {
				b.Fatal(err)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/files.example/7/tags/list", http.NoBody))
			if w.Code != http.StatusOK {
				b.Fatal(w.Code, w.Body)
			}
			s.Close()
		}
	})
}
