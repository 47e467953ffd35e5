package builder_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/builder"
)

// twoFiles is a manifest with two files of 1 MiB, numbered in the order of the bundle. serve is called before a file
// is sent.
type twoFiles struct {
	dir, cache, output string
	server             *httptest.Server
	contents           [][]byte
}

func newTwoFiles(t *testing.T, serve func(s *twoFiles, i int, r *http.Request)) *twoFiles {
	t.Helper()
	dir := t.TempDir()
	s := &twoFiles{
		dir: dir, cache: filepath.Join(dir, "cache"), output: filepath.Join(dir, "out.kkb"),
		contents: [][]byte{noise(1), noise(2)},
	}
	slices.SortFunc(s.contents, func(a, b []byte) int {
		return strings.Compare(digest.FromBytes(a).String(), digest.FromBytes(b).String())
	})
	mux := http.NewServeMux()
	for i, data := range s.contents {
		mux.HandleFunc(fmt.Sprintf("/%d", i), func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				serve(s, i, r)
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		})
	}
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	return s
}

// build builds a bundle of the first n files.
func (s *twoFiles) build(t *testing.T, n int) []byte {
	t.Helper()
	text := "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: 1.0.0}\nplatforms: [linux/amd64]\n"
	text += fmt.Sprintf("sources: [{host: %q, plainHTTP: true}]\nfiles:\n", strings.TrimPrefix(s.server.URL, "http://"))
	for i, data := range s.contents[:n] {
		text += fmt.Sprintf("  - {name: f%d, url: \"%s/%d\", sha256: %s}\n", i, s.server.URL, i,
			digest.FromBytes(data).Encoded())
	}
	file := filepath.Join(s.dir, "manifest.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := builder.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Build(t.Context(), builder.Options{Cache: s.cache, Output: s.output}); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, ".out.kkb.*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	data, err := os.ReadFile(s.output)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// grows waits until the unfinished bundle has at least so many bytes.
func (s *twoFiles) grows(r *http.Request, size int64) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) &&
		r.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
		found, err := filepath.Glob(filepath.Join(s.dir, "."+filepath.Base(s.output)+".*"))
		if err != nil {
			return false
		}
		for _, name := range found {
			if info, err := os.Stat(name); err == nil && info.Size() >= size {
				return true
			}
		}
	}
	return false
}

// TestBuildWritesWhileContentsArrive has a server that sends the bundle's last file only once the file before it is
// in the unfinished bundle. The bundle has the bytes of one written from the cache.
func TestBuildWritesWhileContentsArrive(t *testing.T) {
	t.Parallel()
	s := newTwoFiles(t, func(s *twoFiles, i int, r *http.Request) {
		if i == 1 && !s.grows(r, 1<<19) {
			t.Error("the bundle was not written while contents arrived")
		}
	})
	cold := s.build(t, 2)
	if warm := s.build(t, 2); !bytes.Equal(warm, cold) {
		t.Error("a build from the cache has other bytes")
	}
}

// TestBuildStopsDownloadsWhenWritingFails damages the cache's copy of the first file. The download of the second ends
// when the writer meets the damage, and starts over with that of the first. The writer may meet it first: then there
// is another try.
func TestBuildStopsDownloadsWhenWritingFails(t *testing.T) {
	t.Parallel()
	for range 300 {
		if stopsDownload(t) {
			return
		}
	}
	t.Error("in 300 builds, the damage was always met before the download began")
}

// stopsDownload builds with a damaged cache, and reports whether the second file was asked for before the damage was
// met.
func stopsDownload(t *testing.T) bool {
	t.Helper()
	var requests [2]atomic.Int32
	again := make(chan struct{}) // closed when the first file is asked for again: the damage has been met
	s := newTwoFiles(t, func(_ *twoFiles, i int, r *http.Request) {
		n := requests[i].Add(1)
		switch {
		case i == 0 && n == 2:
			close(again)
		case i == 1 && n == 1:
			select {
			case <-r.Context().Done():
			case <-again: // the damage was met before this download began
			case <-time.After(40 * time.Second): // before the client gives a silent server up
				t.Error("the download went on")
			}
		}
	})
	s.build(t, 1)
	s.damage(t, 0)
	mended := s.build(t, 2)
	if requests[0].Load() != 2 || requests[1].Load() > 2 {
		t.Errorf("requests %d and %d, want 2 each, or 2 and 1", requests[0].Load(), requests[1].Load())
	}
	s.cache = filepath.Join(s.dir, "fresh")
	stopped := requests[1].Load() == 2
	if fresh := s.build(t, 2); !bytes.Equal(fresh, mended) {
		t.Error("a build with a fresh cache has other bytes")
	}
	return stopped
}

// damage changes a byte of a file in the cache.
func (s *twoFiles) damage(t *testing.T, i int) {
	t.Helper()
	err := filepath.WalkDir(s.cache, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) != digest.FromBytes(s.contents[i]).Encoded() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[1000]++
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func noise(seed byte) []byte {
	out := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(out)
	return out
}
