package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

type fault = func(http.ResponseWriter, *http.Request, siteFile) bool

// big is larger than two of the cache's pieces, so that something is kept of a part.
const big = 9 << 20

func TestAllSurvivesTransport(t *testing.T) {
	t.Parallel()
	data := noise(1, big)
	other := noise(2, big)
	cases := map[string]struct {
		faults []fault
		ranges []string // of the GET requests
	}{
		"no fault": {nil, []string{""}},
		"cut once": {[]fault{cutAfter(5 << 20)}, []string{"", "bytes=5242880-"}},
		"cut again and again": {[]fault{
			cutAfter(1 << 20), cutAfter(1 << 20), cutAfter(1 << 20), cutAfter(1 << 20),
			cutAfter(1 << 20), cutAfter(1 << 20),
		}, []string{
			"", "bytes=1048576-", "bytes=2097152-", "bytes=3145728-",
			"bytes=4194304-", "bytes=5242880-", "bytes=6291456-",
		}},
		"500, 502, 503": {[]fault{answer(500), answer(502), answer(503)}, []string{"", "", "", ""}},
		"429 with time": {[]fault{answer(429, "Retry-After", "0")}, []string{"", ""}},
		"200 to a range": {[]fault{cutAfter(5 << 20), func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			r.Header.Del("Range")
			return false
		}}, []string{"", "bytes=5242880-"}},
		"206 from elsewhere": {[]fault{cutAfter(5 << 20), func(w http.ResponseWriter, r *http.Request,
			f siteFile,
		) bool {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 5000000-%d/%d", len(f.content)-1, len(f.content)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(f.content[5000000:])
			return true
		}}, []string{"", "bytes=5242880-", ""}},
		"206 without range header": {[]fault{cutAfter(5 << 20), answer(206)}, []string{"", "bytes=5242880-", ""}},
		"416":                      {[]fault{cutAfter(5 << 20), answer(416)}, []string{"", "bytes=5242880-", ""}},
		"other version, then the right one": {[]fault{func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			f.content, f.etag = other, `"other"`
			return cutAfter(5<<20)(w, r, f)
		}}, []string{"", "bytes=5242880-"}},
		"other version without validators": {[]fault{func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			f.content, f.etag = other, ""
			return cutAfter(5<<20)(w, r, f)
		}}, []string{"", "bytes=5242880-", ""}},
		"length too large": {[]fault{func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			w.Header().Set("ETag", f.etag)
			_, _ = w.Write(f.content[:1<<20]) // chunked: the end looks like an end
			return true
		}}, []string{"", "bytes=1048576-"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			pin := filePin(s.put("/f", data), data)
			s.fault(c.faults...)
			store := newStore(t)
			items, err := fetch.All(t.Context(), lock(pin), options(store, s))
			if err != nil {
				t.Fatal(err)
			}
			if got := content(t, store, pin.Digest); !bytes.Equal(got, data) {
				t.Error("the content is not upstream's")
			}
			var ranges []string
			for _, r := range s.seen() {
				ranges = append(ranges, r.rng)
				if r.agent != "kkbundle" {
					t.Errorf("User-Agent %q", r.agent)
				}
			}
			if got, want := fmt.Sprintf("%q", ranges), fmt.Sprintf("%q", c.ranges); got != want {
				t.Errorf("ranges asked for: got %s, want %s", got, want)
			}
			if len(items) != 1 {
				t.Errorf("%d items", len(items))
			}
		})
	}
}

// TestAllStall has a server that stops after 5 MiB, as often as it is asked for what comes before. That a busy
// machine may make a stall of any pause changes how many requests there are, and nothing else.
func TestAllStall(t *testing.T) {
	t.Parallel()
	const there = 5 << 20
	data := noise(3, big)
	s := newSite(t, false)
	pin := filePin(s.put("/f", data), data)
	var stall fault
	stall = func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
		var from int
		if rng := r.Header.Get("Range"); rng != "" {
			if _, err := fmt.Sscanf(rng, "bytes=%d-", &from); err != nil {
				t.Error(err)
			}
		}
		if from >= there {
			return false
		}
		s.fault(stall)
		w.Header().Set("Content-Length", strconv.Itoa(len(f.content)-from))
		w.Header().Set("ETag", f.etag)
		if from > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(f.content)-1, len(f.content)))
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(f.content[from:there])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	s.fault(stall)
	o := options(newStore(t), s)
	o.Retry.Idle, o.Retry.Attempts = time.Second, math.MaxInt
	if _, err := fetch.All(t.Context(), lock(pin), o); err != nil {
		t.Fatal(err)
	}
	got := s.seen()
	if !slices.ContainsFunc(got,
		func(r siteRequest) bool { return r.rng == fmt.Sprintf("bytes=%d-", there) && r.ifRange != "" }) {
		t.Errorf("requests: %+v", got)
	}
	if !bytes.Equal(content(t, o.Store, pin.Digest), data) {
		t.Error("the content is not upstream's")
	}
}

func TestAllRefusesAtOnce(t *testing.T) {
	t.Parallel()
	data := noise(4, 1<<20)
	cases := map[string]struct {
		faults   []fault
		requests int
		says     []string
	}{
		"404": {[]fault{answer(404)}, 1, []string{"/f", "no such file", "404"}},
		"401": {[]fault{answer(401)}, 1, []string{"netrc", "401"}},
		"403": {[]fault{answer(403)}, 1, []string{"403"}},
		"shorter file": {[]fault{func(w http.ResponseWriter, _ *http.Request, f siteFile) bool {
			_, _ = w.Write(f.content[:1000])
			return true
		}}, 1, []string{"/f", "expected 1048576 bytes", "1000"}},
		"longer file": {[]fault{func(w http.ResponseWriter, _ *http.Request, f siteFile) bool {
			w.Header().Set("Content-Length", "1048577")
			return true
		}}, 1, []string{"expected 1048576 bytes", "1048577"}},
		"longer, chunked": {[]fault{func(w http.ResponseWriter, _ *http.Request, f siteFile) bool {
			w.(http.Flusher).Flush()
			_, _ = w.Write(append(f.content[:len(f.content):len(f.content)], 1))
			return true
		}}, 1, []string{"expected 1048576 bytes", "sends more"}},
		"other content": {
			[]fault{func(w http.ResponseWriter, _ *http.Request, f siteFile) bool {
				_, _ = w.Write(noise(5, len(f.content)))
				return true
			}},
			1,
			[]string{"wrong content", digestOf(data).String(), digestOf(noise(5, 1<<20)).String()},
		},
		"always 500": {
			[]fault{answer(500), answer(500), answer(500), answer(500), answer(500)},
			4,
			[]string{"500", "tried 4 times"},
		},
		"come back sunday": {[]fault{answer(429, "Retry-After", "86400")}, 1, []string{"429", "24h0m0s"}},
		"part of nothing": {[]fault{func(w http.ResponseWriter, _ *http.Request, f siteFile) bool {
			w.Header().Set("Content-Range", "bytes 0-9/1048576")
			w.WriteHeader(206)
			return true
		}}, 1, []string{"206"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			pin := filePin(s.put("/f", data), data)
			s.fault(c.faults...)
			_, err := fetch.All(t.Context(), lock(pin), options(newStore(t), s))
			wantError(t, err, append(c.says, "file "+pin.Ref)...)
			var failed *fetch.Errors
			if !errors.As(err, &failed) || len(failed.Failed) != 1 {
				t.Errorf("not *Errors with one item: %v", err)
			}
			if n := s.count("", ""); n != c.requests {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
		})
	}
}

func TestAllWaitsAsAsked(t *testing.T) {
	t.Parallel()
	data := noise(6, 1000)
	s := newSite(t, false)
	var at [2]time.Time
	s.fault(
		func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			at[0] = time.Now()
			return answer(503, "Retry-After", "1")(w, r, f)
		},
		func(http.ResponseWriter, *http.Request, siteFile) bool { at[1] = time.Now(); return false },
	)
	if _, err := fetch.All(t.Context(), lock(filePin(s.put("/f", data), data)), options(newStore(t), s)); err != nil {
		t.Fatal(err)
	}
	if waited := at[1].Sub(at[0]); waited < time.Second {
		t.Errorf("came back after %s, asked for 1s", waited)
	}
}

// TestAllContinuesAcrossRuns ends a run in the middle; the next one asks only for the rest.
func TestAllContinuesAcrossRuns(t *testing.T) {
	t.Parallel()
	data := noise(7, big)
	s := newSite(t, false)
	pin := filePin(s.put("/f", data), data)
	ctx, cancel := context.WithCancel(t.Context())
	s.fault(func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
		w.Header().Set("Content-Length", strconv.Itoa(len(f.content)))
		_, _ = w.Write(f.content[:5<<20])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	store := newStore(t)
	o := options(store, s)
	o.Progress = func(e fetch.Event) {
		if e.Done >= 5<<20 {
			cancel()
		}
	}
	_, err := fetch.All(ctx, lock(pin), o)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	var last atomic.Value
	o.Progress = func(e fetch.Event) { last.Store(e) }
	if _, err := fetch.All(t.Context(), lock(pin), o); err != nil {
		t.Fatal(err)
	}
	got := s.seen()
	if len(got) != 2 || got[1].rng != "bytes=4194304-" { // the cache keeps whole pieces
		t.Errorf("requests: %+v", got)
	}
	e := last.Load().(fetch.Event)
	if e.Cached != 4<<20 || e.Done != big-4<<20 || e.Total != big-4<<20 {
		t.Errorf("counters: %+v", e)
	}
	if !bytes.Equal(content(t, store, pin.Digest), data) {
		t.Error("the content is not upstream's")
	}
}

// TestResolveContinuesAcrossRuns does the same for a file whose digest nobody knows: only its ETag can tell.
func TestResolveContinuesAcrossRuns(t *testing.T) {
	t.Parallel()
	old, changed := noise(8, big), noise(9, big)
	for name, second := range map[string][]byte{"same version": old, "new version": changed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			address := s.put("/f", old)
			s.fault(cutAfter(6<<20), answer(404))
			b := &manifest.Bundle{Platforms: []string{"linux/amd64"}, Files: []manifest.File{{Name: "f", URL: address}}}
			store := newStore(t)
			if _, err := fetch.Resolve(t.Context(), b, options(store, s)); err == nil {
				t.Fatal("no error")
			}
			s.put("/f", second)
			l, err := fetch.Resolve(t.Context(), b, options(store, s))
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Items[0]; got.Digest != digestOf(second) || got.Size != big ||
				got.Verified != manifest.VerifiedFirstUse {
				t.Errorf("pin: %+v", got)
			}
			reqs := s.seen()
			last := reqs[len(reqs)-1]
			if name == "same version" && (last.rng != "bytes=4194304-" || last.ifRange == "") {
				t.Errorf("last request: %+v", last)
			}
			if name == "new version" && last.rng != "" {
				t.Errorf("last request: %+v", last)
			}
			before := s.count("", "")
			if _, err := fetch.All(t.Context(), l, options(store, s)); err != nil {
				t.Fatal(err)
			}
			if n := s.count("", "") - before; n != 0 {
				t.Errorf("All asked %d times for what Resolve had fetched", n)
			}
		})
	}
}

// fullStore is a store whose disk is full after some bytes. It stands in for a real full disk, which a test can't have.
type fullStore struct {
	fetch.Store
	left atomic.Int64
}

func (s *fullStore) Begin(ctx context.Context, key string) (fetch.BlobWriter, int64, error) {
	w, offset, err := s.Store.Begin(ctx, key)
	return &fullWriter{w, s}, offset, err
}

type fullWriter struct {
	fetch.BlobWriter
	s *fullStore
}

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.s.left.Add(-int64(len(p))) < 0 {
		return 0, fmt.Errorf("write part: %w", syscall.ENOSPC)
	}
	return w.BlobWriter.Write(p)
}

func TestAllFullDisk(t *testing.T) {
	t.Parallel()
	data := noise(13, big)
	s := newSite(t, false)
	store := &fullStore{Store: newStore(t)}
	store.left.Store(5 << 20)
	pin := filePin(s.put("/f", data), data)
	_, err := fetch.All(t.Context(), lock(pin), options(store, s))
	wantError(t, err, "the disk of the cache is full", "--cache", pin.Ref)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("ENOSPC is not found in %v", err)
	}
	if n := s.count("", ""); n != 1 {
		t.Errorf("asked %d times; another attempt does not make room", n)
	}
	store.left.Store(1 << 40)
	if _, err := fetch.All(t.Context(), lock(pin), options(store, s)); err != nil {
		t.Fatal(err)
	}
	if got := s.seen(); got[1].rng != "bytes=4194304-" {
		t.Errorf("the second run did not continue: %+v", got[1])
	}
}

func TestAllEventsAndFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	var pins []manifest.Pin
	for i := range 5 {
		data := noise(uint64(40+i), 10_000*(i+1))
		pins = append(pins, filePin(s.put(fmt.Sprintf("/f%d", i), data), data))
	}
	pins[1].Ref += ".gone"
	pins[3].Digest = digest.FromString("something else")
	var mu sync.Mutex
	started, finished, failed := map[string]int{}, map[string]int{}, map[string]int{}
	o := options(newStore(t), s)
	o.Jobs = 2
	o.Progress = func(e fetch.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case e.Type == fetch.EventStarted:
			started[e.Ref]++
		case e.Type == fetch.EventFinished && e.Err != nil:
			failed[e.Ref]++
		case e.Type == fetch.EventFinished:
			finished[e.Ref]++
		}
	}
	items, err := fetch.All(t.Context(), lock(pins...), o)
	var all *fetch.Errors
	if !errors.As(err, &all) || len(all.Failed) != 2 || all.Items != 5 {
		t.Fatalf("got %v", err)
	}
	if all.Failed[0].Ref != pins[1].Ref || all.Failed[1].Ref != pins[3].Ref {
		t.Errorf("order: %v", err)
	}
	wantError(t, err, "2 of 5 items")
	if len(items) != 3 || items[0].Ref != pins[0].Ref || items[2].Ref != pins[4].Ref {
		t.Errorf("items: %+v", items)
	}
	if len(started) != 5 || len(finished) != 3 || len(failed) != 2 {
		t.Errorf("events: %v %v %v", started, finished, failed)
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	a, b, c := noise(50, 1000), noise(51, 2000), noise(52, 4000)
	pins := []manifest.Pin{filePin(s.put("/a", a), a), filePin(s.put("/b", b), b), filePin(s.put("/c", c), c)}
	pins[2].Size = 0
	store := newStore(t)
	if _, err := fetch.All(t.Context(), lock(pins[0]), options(store, s)); err != nil {
		t.Fatal(err)
	}
	got := estimate(t, lock(pins...), options(store, s))
	if want := (fetch.Estimation{Download: 2000, Cached: 1000, Unknown: 1, Blobs: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// estimate returns the bytes and blobs that a run would transfer.
func estimate(t *testing.T, l *manifest.Lock, o fetch.Options) fetch.Estimation {
	t.Helper()
	j, err := fetch.Prepare(t.Context(), l, o)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if failed := j.Failed(); len(failed) > 0 {
		t.Fatal(failed)
	}
	return j.Estimate()
}

// TestItemManifest holds the bytes of a file's artifact: they are part of a bundle's identity.
func TestItemManifest(t *testing.T) {
	t.Parallel()
	data := []byte("#!/bin/sh\n")
	s := newSite(t, false)
	pin := filePin(s.put("/v1/tool_linux_amd64", data), data)
	pin.Platform, pin.Mode = "linux/amd64", 0o755
	store := newStore(t)
	items, err := fetch.All(t.Context(), lock(pin), options(store, s))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.kkbundle.file.v1",` +
		`"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},` +
		`"layers":[{"mediaType":"application/octet-stream","digest":"sha256:%s","size":10,` +
		`"annotations":{"io.kkbundle.mode":"0755","org.opencontainers.image.title":"tool_linux_amd64"}}]}`
	d := items[0].Descriptor
	if got := string(content(t, store, d.Digest)); got != fmt.Sprintf(want, digestOf(data).Encoded()) {
		t.Errorf("manifest: %s", got)
	}
	if d.ArtifactType != "application/vnd.kkbundle.file.v1" || d.Platform == nil ||
		d.Platform.Architecture != "amd64" || d.MediaType != ocispec.MediaTypeImageManifest {
		t.Errorf("descriptor: %+v", d)
	}
	if got := string(content(t, store, ocispec.DescriptorEmptyJSON.Digest)); got != "{}" {
		t.Errorf("config: %s", got)
	}
}

// BenchmarkAll measures the range reader alone: from loopback into a store that neither hashes nor keeps anything.
func BenchmarkAll(b *testing.B) {
	data := noise(60, 256<<20)
	s := newSite(b, false)
	pin := filePin(s.put("/f", data), data)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fetch.All(b.Context(), lock(pin), options(&discard{want: pin.Digest}, s)); err != nil {
			b.Fatal(err)
		}
	}
}

// discard has every blob but one.
type discard struct {
	fetch.Store
	want digest.Digest
	size atomic.Int64
}

func (d *discard) Stat(_ context.Context, of digest.Digest) (int64, bool, error) {
	return d.size.Load(), of != d.want || d.size.Load() > 0, nil
}

func (d *discard) Begin(context.Context, string) (fetch.BlobWriter, int64, error) {
	return &discardWriter{d: d}, 0, nil
}

type discardWriter struct {
	d *discard
	n int64
}

func (w *discardWriter) Write(p []byte) (int, error) { w.n += int64(len(p)); return len(p), nil }
func (w *discardWriter) Commit(_ context.Context, _ int64, d digest.Digest) (ocispec.Descriptor, error) {
	w.d.size.Store(w.n)
	return ocispec.Descriptor{Digest: d, Size: w.n}, nil
}
func (*discardWriter) Reset() error { return nil }
func (*discardWriter) Close() error { return nil }
