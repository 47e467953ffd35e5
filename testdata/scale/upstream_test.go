//go:build linux

package scale

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A source is a file that upstream has and nobody stores: half of each 4 KiB is random, so that it compresses to a
// little over half, like a program does.
type source struct {
	name string
	seed uint64
	size int64
	// known says that the manifest has its checksum; otherwise what came is what is pinned.
	known bool
	// mute makes upstream tell no size and know no ranges.
	mute bool
	// random makes all of it random, as what is compressed already.
	random bool
}

// A stream reads a source.
type stream struct {
	source
	at int64
}

// word is the content's word number n: splitmix64, or the same text again and again.
func (s *stream) word(n uint64) uint64 {
	const words = 4096 / 8
	if n%words >= words/2 && !s.random {
		return 0x656c646e75626b6b // "kkbundle"
	}
	z := s.seed<<48 + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if s.at >= s.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), s.size-s.at)]
	for done := 0; done < len(p); {
		n, skip := uint64(s.at)/8, int(s.at%8)
		if rest := p[done:]; skip == 0 && len(rest) >= 8 {
			binary.LittleEndian.PutUint64(rest, s.word(n))
			done, s.at = done+8, s.at+8
			continue
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], s.word(n))
		copied := copy(p[done:], b[skip:])
		done, s.at = done+copied, s.at+int64(copied)
	}
	return len(p), nil
}

// Seek implements io.Seeker.
func (s *stream) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	s.at = offset
	return offset, nil
}

func (s source) sha256(t testing.TB) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, &stream{source: s}); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A tap lets so many bytes of content through and calls dry then, before anybody can have the rest.
type tap struct {
	mu   sync.Mutex
	left int64
	dry  func() // nil lets everything through
}

func (a *tap) open(left int64, dry func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left, a.dry = left, dry
}

// take says how many of n bytes may pass.
func (a *tap) take(n int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dry == nil {
		return n
	}
	n = min(n, a.left)
	if a.left -= n; a.left == 0 {
		a.dry()
	}
	return n
}

// handler is next behind the tap.
func (a *tap) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&tapped{ResponseWriter: w, tap: a, gone: r.Context().Done()}, r)
	})
}

// tapped is an answer that comes through a tap.
type tapped struct {
	http.ResponseWriter
	tap  *tap
	gone <-chan struct{}
}

// Write implements io.Writer.
func (w *tapped) Write(p []byte) (int, error) {
	n := w.tap.take(int64(len(p)))
	if n < int64(len(p)) {
		_, _ = w.ResponseWriter.Write(p[:n])
		<-w.gone
		panic(http.ErrAbortHandler)
	}
	return w.ResponseWriter.Write(p)
}

// upstream serves sources and returns a manifest that asks for all of them, in a directory of its own.
func upstream(t testing.TB, sources ...source) (manifest string) {
	t.Helper()
	return upstreamBehind(t, &tap{}, sources...)
}

func upstreamBehind(t testing.TB, a *tap, sources ...source) (manifest string) {
	t.Helper()
	mux := http.NewServeMux()
	for _, s := range sources {
		mux.HandleFunc("/"+s.name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			if s.mute {
				if r.Method == http.MethodGet {
					_, _ = io.Copy(w, &stream{source: s}) // who hangs up early notices itself
				}
				return
			}
			w.Header().Set("ETag", fmt.Sprintf(`"%d-%d"`, s.seed, s.size))
			http.ServeContent(w, r, "", time.Time{}, &stream{source: s})
		})
	}
	server := httptest.NewServer(a.handler(mux))
	t.Cleanup(server.Close)

	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: scale, version: 1}\nplatforms: [linux/amd64]\n")
	fmt.Fprintf(&b, "sources:\n  - {host: %q, plainHTTP: true}\nfiles:\n", strings.TrimPrefix(server.URL, "http://"))
	for _, s := range sources {
		sum := ""
		if s.known {
			sum = fmt.Sprintf(", sha256: %q", s.sha256(t))
		}
		fmt.Fprintf(&b, "  - {name: %s, url: %q%s}\n", s.name, server.URL+"/"+s.name, sum)
	}
	manifest = filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(manifest, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return manifest
}
