package fetch_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A site is a real HTTP server with files, ranges and validators, which misbehaves where a test wants it.
type site struct {
	host string // host:port
	url  string
	ca   string // PEM file, "" without TLS

	headless bool // HEAD is answered with 404

	mu       sync.Mutex
	files    map[string]siteFile
	requests []siteRequest
	faults   []func(w http.ResponseWriter, r *http.Request, f siteFile) bool
}

type siteFile struct {
	content []byte
	etag    string
	changed time.Time
}

type siteRequest struct {
	method, path, rng, ifRange, auth, agent string
}

func newSite(t testing.TB, tls bool) *site {
	t.Helper()
	s := &site{files: map[string]siteFile{}}
	srv := httptest.NewUnstartedServer(s)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if tls {
		srv.StartTLS()
		s.ca = caFile(t, srv)
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	s.url = srv.URL
	_, s.host, _ = strings.Cut(srv.URL, "://")
	return s
}

// caFile writes the certificate that a server is trusted by.
func caFile(t testing.TB, srv *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(path, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// put publishes a file with a strong ETag.
func (s *site) put(path string, content []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = siteFile{content: content, etag: fmt.Sprintf("%q", hex.EncodeToString(sum(content))[:16])}
	return s.url + path
}

// fault makes one request for a file go wrong: the function answers and returns true, or leaves it to the server.
func (s *site) fault(f ...func(w http.ResponseWriter, r *http.Request, f siteFile) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f...)
}

func (s *site) seen() []siteRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]siteRequest(nil), s.requests...)
}

func (s *site) count(method, path string) int {
	n := 0
	for _, r := range s.seen() {
		if (method == "" || r.method == method) && (path == "" || r.path == path) {
			n++
		}
	}
	return n
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, siteRequest{
		r.Method, r.URL.Path, r.Header.Get("Range"), r.Header.Get("If-Range"), r.Header.Get("Authorization"),
		r.Header.Get("User-Agent"),
	})
	f, ok := s.files[r.URL.Path]
	var fault func(http.ResponseWriter, *http.Request, siteFile) bool
	if ok && len(s.faults) > 0 && r.Method == http.MethodGet {
		fault, s.faults = s.faults[0], s.faults[1:]
	}
	s.mu.Unlock()
	if fault != nil && fault(w, r, f) {
		return
	}
	if !ok || s.headless && r.Method == http.MethodHead {
		http.NotFound(w, r)
		return
	}
	if f.etag != "" {
		w.Header().Set("ETag", f.etag)
	}
	http.ServeContent(w, r, "", f.changed, bytes.NewReader(f.content))
}

// cutAfter breaks the connection after n bytes of what was asked for.
func cutAfter(n int) func(http.ResponseWriter, *http.Request, siteFile) bool {
	return func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
		from := 0
		if rng := r.Header.Get("Range"); rng != "" {
			from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(rng, "bytes="), "-"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(f.content)-1, len(f.content)))
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(f.content)-from))
		if f.etag != "" {
			w.Header().Set("ETag", f.etag)
		}
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(f.content[from : from+n])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// answer sends a status with headers given in pairs.
func answer(status int, header ...string) func(http.ResponseWriter, *http.Request, siteFile) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ siteFile) bool {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		return true
	}
}

func sum(data []byte) []byte {
	s := sha256.Sum256(data)
	return s[:]
}

func digestOf(data []byte) digest.Digest { return digest.FromBytes(data) }

// noise is content that does not compress, the same for the same seed.
func noise(seed uint64, n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(out)
	return out
}

func newStore(t testing.TB) *cache.Cache {
	t.Helper()
	c, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// never is a time that no server is given up after: a busy machine takes its time.
const never = 24 * time.Hour

// options trust the site and are impatient enough for tests.
func options(store fetch.Store, sites ...*site) fetch.Options {
	o := fetch.Options{
		Store:     store,
		Platforms: []string{"linux/amd64"},
		Retry:     fetch.Retry{Attempts: 4, Wait: time.Millisecond, MaxWait: 5 * time.Millisecond, Idle: never},
	}
	for _, s := range sites {
		o.Sources = append(o.Sources, sources.Source{Host: s.host, CA: s.ca, PlainHTTP: s.ca == ""})
	}
	return o
}

func content(t testing.TB, store fetch.Store, d digest.Digest) []byte {
	t.Helper()
	rc, err := store.Open(context.Background(), d)
	if err != nil {
		t.Fatalf("open %s: %v", d, err)
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		t.Fatalf("read %s: %v", d, err)
	}
	return data
}

func filePin(address string, data []byte) manifest.Pin {
	return manifest.Pin{
		Kind: manifest.ItemFile, Ref: address, Name: "f", Digest: digestOf(data), Size: int64(len(data)),
		Verified: manifest.VerifiedManifest,
	}
}

func lock(pins ...manifest.Pin) *manifest.Lock { return &manifest.Lock{Items: pins} }

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error does not say %q: %v", p, err)
		}
	}
}
