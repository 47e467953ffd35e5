package fetch_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A world is everything that a small build asks for: an image for two platforms, a chart in a registry that wants
// tokens, a chart in a repository, a file with a checksum and one without.
type world struct {
	content map[string]published // by path
}

type published struct {
	data      []byte
	mediaType string
	digest    string
}

const (
	worldTokens = "/token"
	unvouched   = "/files/notes" // whose checksum nobody publishes
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{content: map[string]published{}}
	var idx v1.ImageIndex = empty.Index
	for _, p := range []string{"linux/amd64", "linux/arm64"} {
		img := platformImage(t, p)
		idx = add(t, idx, img, p)
		w.image(t, "app", img)
	}
	w.manifest(t, "app", "1.0", idx)
	w.chart(t)
	archive := chartArchive(t, "1.2.3")
	tool := noise(300, 20_000)
	w.content["/charts/app-1.2.3.tgz"] = published{data: archive}
	w.content["/charts/index.yaml"] = published{data: []byte(
		"apiVersion: v1\nentries:\n  app:\n  - {name: app, version: 1.2.3, urls: [app-1.2.3.tgz]}\n")}
	w.content["/files/tool"] = published{data: tool}
	w.content["/files/tool.sha256"] = published{data: []byte(hex.EncodeToString(sum(tool)) + "  tool\n")}
	w.content[unvouched] = published{data: noise(301, 10_000)}
	return w
}

func (w *world) manifest(t *testing.T, repo, tag string, m interface {
	partial.WithRawManifest
	partial.Describable
},
) {
	t.Helper()
	raw, err := m.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	kind, err := m.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	p := published{raw, string(kind), digestOf(raw).String()}
	for _, id := range []string{tag, p.digest} {
		w.content[path.Join("/v2", repo, "manifests", id)] = p
	}
}

func (w *world) blob(repo string, data []byte) {
	w.content[path.Join("/v2", repo, "blobs", digestOf(data).String())] = published{data: data}
}

func (w *world) image(t *testing.T, repo string, img v1.Image) {
	t.Helper()
	w.manifest(t, repo, digestString(t, img).String(), img)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	w.blob(repo, config)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(rc)
		if err := errors.Join(err, rc.Close()); err != nil {
			t.Fatal(err)
		}
		w.blob(repo, data)
	}
}

func (w *world) chart(t *testing.T) {
	t.Helper()
	archive, config := chartArchive(t, "0.1.0"), []byte(`{"name":"app","version":"0.1.0"}`)
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img, err := mutate.Append(img,
		mutate.Addendum{Layer: static.NewLayer(archive, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	old, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	oldSize, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.Replace(raw, []byte(old.String()), []byte(digestOf(config).String()), 1)
	raw = bytes.Replace(raw, fmt.Appendf(nil, `"size":%d`, len(oldSize)), fmt.Appendf(nil, `"size":%d`, len(config)), 1)
	raw = bytes.Replace(raw, []byte("application/vnd.docker.container.image.v1+json"),
		[]byte("application/vnd.cncf.helm.config.v1+json"), 1)
	raw = bytes.Replace(raw, []byte("application/vnd.oci.image.config.v1+json"),
		[]byte("application/vnd.cncf.helm.config.v1+json"), 1)
	p := published{raw, ocispec.MediaTypeImageManifest, digestOf(raw).String()}
	w.content["/v2/charts/app/manifests/0.1.0"], w.content["/v2/charts/app/manifests/"+p.digest] = p, p
	w.blob("charts/app", config)
	w.blob("charts/app", archive)
}

// ServeHTTP is the world without a fault.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == worldTokens {
		_, _ = io.WriteString(rw, `{"token": "good", "expires_in": 300}`)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") && r.Header.Get("Authorization") != "Bearer good" {
		challenge(rw, r)
		return
	}
	p, ok := w.content[r.URL.Path]
	switch {
	case r.URL.Path == "/v2/":
		return
	case !ok:
		http.NotFound(rw, r)
		return
	case p.digest != "":
		rw.Header().Set("Docker-Content-Digest", p.digest)
		rw.Header().Set("Content-Type", p.mediaType)
	default:
		rw.Header().Set("Content-Type", "application/octet-stream")
	}
	rw.Header().Set("ETag", fmt.Sprintf(`"%x"`, sum(p.data)))
	http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(p.data))
}

func challenge(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+worldTokens+`",service="world"`)
	rw.WriteHeader(http.StatusUnauthorized)
}

// A worldFault answers a request in the place of the world.
type worldFault func(rw http.ResponseWriter, r *http.Request, next http.Handler)

// half sends half of the right answer as the world would, and then what is left to do.
func half(rw http.ResponseWriter, r *http.Request, next http.Handler, then func()) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	for key, values := range rec.Header() {
		rw.Header()[key] = values
	}
	body := rec.Body.Bytes()
	if r.Method != http.MethodHead {
		rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	rw.WriteHeader(rec.Code)
	_, _ = rw.Write(body[:len(body)/2])
	rw.(http.Flusher).Flush()
	then()
}

func worldFaults() map[string]worldFault {
	status := func(code int) worldFault {
		return func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) { rw.WriteHeader(code) }
	}
	abort := func() { panic(http.ErrAbortHandler) }
	return map[string]worldFault{
		"reset before the answer": func(http.ResponseWriter, *http.Request, http.Handler) { abort() },
		"reset in the middle": func(rw http.ResponseWriter, r *http.Request,
			next http.Handler,
		) {
			half(rw, r, next, abort)
		},
		"stall in the middle": func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
			half(rw, r, next, func() { stallFor(r) })
		},
		"429":           status(http.StatusTooManyRequests),
		"503":           status(http.StatusServiceUnavailable),
		"404":           status(http.StatusNotFound),
		"expired token": func(rw http.ResponseWriter, r *http.Request, _ http.Handler) { challenge(rw, r) },
		"a redirect that never ends": func(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(rw, r, r.URL.Path, http.StatusFound)
		},
		"a body that never ends":      endless,
		"wrong bytes":                 wrongBytes,
		"short with a fitting length": tooShort,
		"gzip that nobody asked for":  encoded,
	}
}

type quitKey struct{}

// stallFor waits until the client is gone. Where another request came over the same connection, net/http does not
// notice that.
func stallFor(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-r.Context().Value(quitKey{}).(chan struct{}):
	}
	panic(http.ErrAbortHandler)
}

func endless(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
	rw.Header().Set("Content-Type", "application/json")
	for junk := bytes.Repeat([]byte("x"), 64<<10); r.Context().Err() == nil; {
		if _, err := rw.Write(junk); err != nil {
			return
		}
		if r.Method == http.MethodHead {
			return
		}
	}
}

func wrongBytes(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	for key, values := range rec.Header() {
		rw.Header()[key] = values
	}
	rw.WriteHeader(rec.Code)
	body := bytes.Clone(rec.Body.Bytes())
	if len(body) > 0 {
		body[len(body)/2] ^= 1
	}
	_, _ = rw.Write(body)
}

func tooShort(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	for key, values := range rec.Header() {
		if key != "Content-Length" && key != "Content-Range" {
			rw.Header()[key] = values
		}
	}
	rw.WriteHeader(rec.Code)
	_, _ = rw.Write(body[:len(body)/2])
}

func encoded(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	rw.Header().Set("Content-Encoding", "gzip") // which it is not
	next.ServeHTTP(rw, r)
}

// A front counts the requests to a world, and lets one fault happen.
type front struct {
	next   http.Handler
	fault  worldFault
	at     int  // the request that it happens to, from 0; -1 for none
	always bool // it happens again whenever the same is asked for

	mu   sync.Mutex
	seen []string
}

func (f *front) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	id := r.Method + " " + r.URL.Path
	f.mu.Lock()
	n := len(f.seen)
	f.seen = append(f.seen, id)
	hit := f.at >= 0 && (n == f.at || f.always && n > f.at && f.seen[f.at] == id)
	f.mu.Unlock()
	if hit {
		f.fault(rw, r, f.next)
		return
	}
	f.next.ServeHTTP(rw, r)
}

func (f *front) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// serveFront listens for one run. The addresses in manifests and locks are of hosts that stay the same.
func serveFront(f *front) (mirror string, stop func()) {
	quit := make(chan struct{})
	srv := httptest.NewUnstartedServer(f)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Config.BaseContext = func(net.Listener) context.Context {
		return context.WithValue(context.Background(),
			quitKey{}, quit)
	}
	srv.Start()
	return strings.TrimPrefix(srv.URL, "http://"), func() { close(quit); srv.CloseClientConnections(); srv.Close() }
}

func worldManifest() *manifest.Bundle {
	return &manifest.Bundle{
		Metadata:  manifest.Metadata{Name: "w", Version: "1"},
		Platforms: []string{"linux/amd64", "linux/arm64"},
		Images:    []manifest.Image{{Name: "registry.example/app:1.0"}},
		Charts: []manifest.Chart{
			{Name: "app", Repo: "oci://registry.example/charts", Version: "0.1.0"},
			{Name: "app", Repo: "https://files.example/charts", Version: "1.2.3"},
		},
		Files: []manifest.File{
			{
				Name: "tool", URL: "https://files.example/files/tool",
				Checksums: "https://files.example/files/tool.sha256",
			},
			{Name: "notes", URL: "https://files.example" + unvouched},
		},
	}
}

// An outcome is what a build would have.
type outcome struct {
	lock  []manifest.Pin
	items []fetch.Item
	err   error
}

// thrice asks three times, and takes nothing for a stall.
func thrice() fetch.Retry {
	return fetch.Retry{Attempts: 3, Wait: time.Millisecond, MaxWait: 2 * time.Millisecond, Idle: never}
}

func build(ctx context.Context, store fetch.Store, mirror string, retry fetch.Retry) outcome {
	o := fetch.Options{
		Store: store, Jobs: 1, Keychain: authn.NewMultiKeychain(), MaxUnknown: 1 << 20, Hosts: fetch.NewHosts(),
		Retry: retry,
	}
	for _, host := range []string{"registry.example", "files.example"} {
		o.Sources = append(o.Sources, sources.Source{
			Host: host, Mirrors: sources.Mirrors{mirror}, MirrorOnly: true,
			PlainHTTP: true,
		})
	}
	l, err := fetch.Resolve(ctx, worldManifest(), o)
	if l == nil {
		return outcome{err: err}
	}
	items, more := fetch.All(ctx, l, o)
	return outcome{l.Items, items, errors.Join(err, more)}
}

// check compares a build with the one that nothing disturbed.
func (want outcome) check(got outcome, inTheDark bool) error {
	if got.err == nil {
		if inTheDark {
			return nil // nobody can tell
		}
		if diff := cmp.Diff(want.lock, got.lock); diff != "" {
			return fmt.Errorf("another lock (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.items, got.items); diff != "" {
			return fmt.Errorf("other items (-want +got):\n%s", diff)
		}
		return nil
	}
	known := map[string]bool{}
	for _, p := range want.lock {
		known[p.Kind+" "+strings.TrimSuffix(p.Ref, "/")] = false
	}
	for _, it := range got.items {
		known[it.Kind+" "+it.Ref] = true
	}
	for _, failed := range failedItems(got.err) {
		ref := failed.Kind + " " + failed.Ref
		if _, ok := known[ref]; !ok {
			return fmt.Errorf("%s is no item of the manifest: %w", ref, got.err)
		}
		known[ref] = true
	}
	for ref, ok := range known {
		if !ok {
			return fmt.Errorf("%s is neither there nor named: %w", ref, got.err)
		}
	}
	return nil
}

// failedItems finds what both steps name.
func failedItems(err error) []*fetch.ItemError {
	var list []*fetch.ItemError
	var one *fetch.Errors
	if joined, ok := err.(interface{ Unwrap() []error }); ok && !errors.As(err, new(*fetch.ItemError)) {
		for _, e := range joined.Unwrap() {
			list = append(list, failedItems(e)...)
		}
		return list
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if errors.As(e, &one) {
				list = append(list, one.Failed...)
			}
		}
	}
	if len(list) == 0 && errors.As(err, &one) {
		list = one.Failed
	}
	return list
}

// TestFaults lets each fault happen at every request of a build in turn, once and then for good. The build ends
// right, or names exactly what is missing, and then the next one has it all.
func TestFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clean := &front{next: w, at: -1}
	address, stop := serveFront(clean)
	t.Cleanup(stop)
	want := build(t.Context(), newMemoryStore(), address, thrice())
	if want.err != nil {
		t.Fatal(want.err)
	}
	requests := clean.requests()
	if len(want.items) != 5 || len(requests) < 20 {
		t.Fatalf("%d items, requests: %q", len(want.items), requests)
	}
	step := 1
	if testing.Short() {
		step = 5 // of the requests, one in five is disturbed
	}
	for name, f := range worldFaults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var group sync.WaitGroup
			var right, named atomic.Int32
			slots := make(chan struct{}, 16) // most of the time is spent waiting
			for i := range 2 * len(requests) {
				if i/2%step != 0 {
					continue
				}
				slots <- struct{}{}
				group.Go(func() {
					defer func() { <-slots }()
					disturbed := &front{next: w, fault: f, at: i / 2, always: i%2 == 1}
					if checkFault(t, name, want, disturbed, address) {
						right.Add(1)
					} else {
						named.Add(1)
					}
				})
			}
			group.Wait()
			t.Logf("%d requests: %d builds ended right, %d named what was missing", len(requests), right.Load(),
				named.Load())
			if step == 1 && (right.Load() == 0 || named.Load() == 0) {
				// every fault has requests that matter, and some that do not
				t.Error("it makes no difference whether the fault lasts")
			}
		})
	}
}

// checkFault tells whether the disturbed build ended right.
func checkFault(t *testing.T, name string, want outcome, disturbed *front, clean string) bool {
	retry, stalls := thrice(), strings.HasPrefix(name, "stall")
	switch {
	case stalls && disturbed.always:
		retry.Idle = 300 * time.Millisecond
	case stalls: // a pause that is the machine's is one more attempt
		retry.Idle, retry.Attempts = 2*time.Second, math.MaxInt
	}
	store := newMemoryStore()
	address, stop := serveFront(disturbed)
	defer stop()
	got := build(t.Context(), store, address, retry)
	hit := "none"
	if seen := disturbed.requests(); disturbed.at < len(seen) {
		hit = seen[disturbed.at]
	}
	what := fmt.Sprintf("request %d (%s), always %v", disturbed.at, hit, disturbed.always)
	// What nobody vouches for is what came; that is what "first use" says.
	inTheDark := hit == "GET "+unvouched && (name == "wrong bytes" || name == "short with a fitting length")
	// Nor does a lookup of what is attached to an image fail a build; the lock says that it was not done.
	// On a busy machine, any request may take longer than what is a stall here.
	lookup := strings.Contains(hit, "/referrers/") || strings.Contains(hit, "/manifests/sha256-") ||
		stalls && disturbed.always
	inTheDark = inTheDark ||
		lookup && slices.ContainsFunc(got.lock, func(p manifest.Pin) bool { return p.Referrers != "" })
	if err := want.check(got, inTheDark); err != nil {
		t.Errorf("%s: %v", what, err)
		return false
	}
	if got.err == nil && !inTheDark {
		return true
	}
	again := build(t.Context(), store, clean, thrice())
	if again.err != nil {
		t.Errorf("%s: the next build fails too: %v (the first one: %v)", what, again.err, got.err)
		return false
	}
	if err := want.check(again, false); err != nil {
		t.Errorf("%s: the next build: %v", what, err)
	}
	return false
}

// A memoryStore keeps parts at the byte, which a cache on a disk does at its pieces only.
type memoryStore struct {
	mu    sync.Mutex
	blobs map[digest.Digest][]byte
	parts map[string][]byte
}

func newMemoryStore() *memoryStore {
	return &memoryStore{blobs: map[digest.Digest][]byte{}, parts: map[string][]byte{}}
}

func (s *memoryStore) Stat(_ context.Context, d digest.Digest) (int64, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.blobs[d]
	return int64(len(b)), ok, nil
}

func (s *memoryStore) Open(_ context.Context, d digest.Digest) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return io.NopCloser(bytes.NewReader(s.blobs[d])), nil
}

func (s *memoryStore) Begin(_ context.Context, key string) (fetch.BlobWriter, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &memoryWriter{s: s, key: key, data: s.parts[key]}, int64(len(s.parts[key])), nil
}

func (s *memoryStore) Partial(_ context.Context, key string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.parts[key])), nil
}

type memoryWriter struct {
	s    *memoryStore
	key  string
	data []byte
	done bool
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	w.data = append(w.data, p...)
	return len(p), nil
}

func (w *memoryWriter) Reset() error { w.data = nil; return nil }

func (w *memoryWriter) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.parts[w.key] = bytes.Clone(w.data)
	return nil
}

func (w *memoryWriter) Commit(_ context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error) {
	got := ocispec.Descriptor{Digest: digestOf(w.data), Size: int64(len(w.data))}
	if size >= 0 && size != got.Size || want != "" && want != got.Digest {
		w.data = nil
		return got, errors.Join(&cache.MismatchError{Want: want, Got: got.Digest, WantSize: size, GotSize: got.Size},
			w.Close())
	}
	w.done = true
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.blobs[got.Digest] = bytes.Clone(w.data)
	delete(w.s.parts, w.key)
	return got, nil
}
