package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// bigLayer is more than what is worth to continue.
const bigLayer = 6 << 20

// uploads matches the requests of upload sessions, but for the one that opens them.
var uploads = regexp.MustCompile(`/blobs/uploads/.`)

// cutInside lets the registry have n bytes of a request's body and then breaks the connection.
func cutInside(n int64) registrytest.Effect {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, n), broken{}))
			next.ServeHTTP(w, r)
			panic(http.ErrAbortHandler)
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestPushContinuesInsideBlob(t *testing.T) {
	t.Parallel()
	for what, dir := range map[string]string{"memory": "", "disk": t.TempDir()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{Dir: dir}), bigBundle(t, bigLayer)
			s.AddFaults(
				registrytest.Fault{Method: "PUT", Path: uploads, Effect: cutInside(bigLayer / 2)},
				registrytest.Fault{Method: "PATCH", Path: uploads, Effect: cutInside(bigLayer / 4)},
			)
			o := options(s)
			o.Jobs = 1
			sum := push(t, b, o)
			checkPulled(t, s, b, sum)
			var patched int64
			for _, r := range s.Requests() {
				if r.Method == http.MethodPatch {
					patched += r.Bytes
				}
			}
			if patched < bigLayer/4 || patched > bigLayer*5/8 || s.Count("DELETE", "") != 0 {
				t.Errorf("%d bytes of %d were sent again; %d sessions dropped", patched, bigLayer,
					s.Count("DELETE", ""))
			}
		})
	}
}

// TestPushStartsOverWhereItMust: a registry that does not say how much it has gets the blob anew, and one that has it
// although its answer was lost is believed.
func TestPushStartsOverWhereItMust(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, bigLayer)
	s.AddFaults(
		registrytest.Fault{Method: "PUT", Path: uploads, Effect: cutInside(bigLayer / 2)},
		registrytest.Fault{Method: "GET", Path: uploads, Effect: registrytest.FailWith(416, "",
			`{"errors":[{"code":"RANGE_INVALID"}]}`)},
	)
	o := options(s)
	o.Jobs = 1
	checkPulled(t, s, b, push(t, b, o))
	if s.Count("PATCH", "") != 0 || s.Count("DELETE", "") != 1 {
		t.Errorf("%d PATCH requests, %d sessions dropped; want none and one", s.Count("PATCH", ""),
			s.Count("DELETE", ""))
	}

	s = registrytest.Start(t, registrytest.Options{})
	s.AddFaults(registrytest.Fault{Method: "PUT", Path: uploads, Effect: loseAnswer})
	o = options(s)
	o.Jobs = 1
	checkPulled(t, s, b, push(t, b, o))
	if s.Received() > bigLayer+bigLayer/8 {
		t.Errorf("%d bytes received: the blob was sent twice", s.Received())
	}
}

func loseAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(discard{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	})
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// atMost refuses larger requests, as a proxy before the registry does.
func atMost(limit int64) registrytest.Effect {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > limit {
				http.Error(w, "<html>413</html>", http.StatusRequestEntityTooLarge)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func TestPushChunks(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{Dir: t.TempDir()}), bigBundle(t, bigLayer)
	s.AddFaults(registrytest.Fault{Path: uploads, Times: -1, Effect: atMost(1 << 20)})
	checkPulled(t, s, b, push(t, b, options(s)))
	if n := s.Count("PATCH", ""); n < bigLayer>>20 {
		t.Errorf("%d PATCH requests", n)
	}

	s = registrytest.Start(t, registrytest.Options{})
	s.AddFaults(registrytest.Fault{Path: uploads, Times: -1, Effect: atMost(1000)})
	if _, err := registry.Push(t.Context(), b.Reader, options(s)); err == nil ||
		!strings.Contains(err.Error(), "client_max_body_size") {
		t.Errorf("got %v", err)
	}
}

// TestPushChunkMinLength: chunks are never smaller than the registry wants, but for the last.
func TestPushChunkMinLength(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, bigLayer)
	s.AddFaults(
		registrytest.Fault{Method: "POST", Times: -1, Effect: registrytest.Header("OCI-Chunk-Min-Length",
			strconv.Itoa(5<<20))},
		registrytest.Fault{Method: "PUT", Path: uploads, Times: -1, Effect: atMost(1 << 20)},
		registrytest.Fault{Method: "PATCH", Path: uploads, Times: -1, Effect: atMost(6 << 20)},
	)
	_, err := registry.Push(t.Context(), b.Reader, options(s))
	if err == nil || !strings.Contains(err.Error(), "refuses content of this size") {
		t.Errorf("chunks of 4 MiB are less than the registry takes, and 16 MiB more: got %v", err)
	}
}

// TestPushByPatchOnly: a registry that wants no content with the last request gets it before.
func TestPushByPatchOnly(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: uploads, Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.ContentLength > 0 {
					w.WriteHeader(http.StatusMethodNotAllowed)
					return
				}
				next.ServeHTTP(w, r)
			})
		},
	})
	checkPulled(t, s, b, push(t, b, options(s)))
}

func TestPushLostBlob(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: regexp.MustCompile("/manifests/"),
		Effect: registrytest.FailWith(404, "",
			`{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"blob unknown to registry"}]}`),
	})
	sum := push(t, b, options(s))
	if sum.BlobsSent != 4 { // both, twice
		t.Errorf("%d blobs sent", sum.BlobsSent)
	}
	checkPulled(t, s, b, sum)

	s = registrytest.Start(t, registrytest.Options{}) // it says that it has them, and does not
	s.AddFaults(registrytest.Fault{
		Method: "HEAD", Path: regexp.MustCompile("/blobs/"), Times: -1,
		Effect: registrytest.Fail(200, ""),
	})
	sum = push(t, b, options(s))
	s.ClearFaults()
	checkPulled(t, s, b, sum)
}

// TestPushRecheck finds a blob that the registry has lost although it has the manifest.
func TestPushRecheck(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
	push(t, b, options(s))
	lost := registrytest.Fault{
		Method: "HEAD", Path: regexp.MustCompile("/blobs/"), Times: 1,
		Effect: registrytest.Fail(404, ""),
	}
	s.AddFaults(lost)
	if sum := push(t, b, options(s)); sum.BlobsSent != 0 || sum.ItemsPresent != 1 {
		t.Errorf("without: %+v", sum)
	}
	o := options(s)
	o.Recheck = true
	if sum := push(t, b, o); sum.BlobsSent != 1 || sum.ItemsPushed != 1 {
		t.Errorf("with: %+v", sum)
	}
}

func TestPushFullRegistry(t *testing.T) {
	t.Parallel()
	for what, effect := range map[string]registrytest.Effect{
		"507": registrytest.Fail(507, ""),
		"ENOSPC": registrytest.FailWith(500, "",
			`{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{"Err":"write /v2/x: no space left on device"}}]}`),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
			s.AddFaults(registrytest.Fault{Method: "PUT", Path: uploads, Times: -1, Effect: effect})
			o := options(s)
			o.Jobs = 1
			sum, err := registry.Push(t.Context(), b.Reader, o)
			if err == nil || !strings.Contains(err.Error(), "is full") || sum.ItemsPushed != 0 {
				t.Errorf("got %v; %+v", err, sum)
			}
			if n := s.Count("PUT", ""); n != 1 {
				t.Errorf("%d requests, want no retries", n)
			}
		})
	}
}

// TestPushHeadUnusual: registries that answer no HEAD, or without a digest.
func TestPushHeadUnusual(t *testing.T) {
	t.Parallel()
	for what, effect := range map[string]registrytest.Effect{
		"405":       registrytest.Fail(405, ""),
		"no digest": registrytest.Header("Docker-Content-Digest", ""),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{}), bundletest.New(t)
			s.AddFaults(registrytest.Fault{Method: "HEAD", Times: -1, Effect: effect})
			push(t, b, options(s))
			sum := push(t, b, options(s))
			s.ClearFaults()
			checkPulled(t, s, b, sum)
			if sum.ItemsPresent != 4 {
				t.Errorf("second push: %+v", sum)
			}
		})
	}
}

// TestPushInterruptedDropsSessions: Ctrl-C in the middle of a blob leaves nothing half at the registry.
func TestPushInterruptedDropsSessions(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, bigLayer)
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	s.AddFaults(registrytest.Fault{Method: "PUT", Path: uploads, Effect: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, bigLayer/2)
			once.Do(cancel)
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		})
	}})
	o := options(s)
	o.Jobs = 1
	if _, err := registry.Push(ctx, b.Reader, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if s.Count("DELETE", "/blobs/uploads/") != 1 {
		t.Errorf("%d sessions dropped, want 1", s.Count("DELETE", ""))
	}
}

// TestPushMountsFromWhoHadIt: a blob that the second repository holds since before is not sent to the first.
func TestPushMountsFromWhoHadIt(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	img := bundletest.RandomImage(t, 7, 2, 4000)
	two := bundletest.NewBuilder(t)
	two.Image("a.example/two:1", img)
	push(t, two.Bundle(), options(s))
	both := bundletest.NewBuilder(t)
	both.Image("a.example/one:1", img)
	both.Image("a.example/two:1", img)
	if sum := push(t, both.Bundle(), options(s)); sum.BlobsSent != 0 || sum.BlobsMounted != 3 {
		t.Errorf("%d blobs sent and %d mounted, want 0 and 3", sum.BlobsSent, sum.BlobsMounted)
	}
}

// TestPushTooManyRequests: a registry that takes two requests at a time gets no more in the end, and everything.
func TestPushTooManyRequests(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	var mu sync.Mutex
	busy := 0
	s.AddFaults(registrytest.Fault{Times: -1, Effect: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			busy++
			over := busy > 2
			mu.Unlock()
			defer func() { mu.Lock(); busy--; mu.Unlock() }()
			if over {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	b := bundletest.NewBuilder(t)
	for i := range 20 {
		b.Image(fmt.Sprintf("a.example/app%d:1", i), bundletest.RandomImage(t, int64(i), 2, 2000))
	}
	bun := b.Bundle()
	o := options(s)
	o.Jobs, o.Retries = 16, 20
	sum := push(t, bun, o)
	s.ClearFaults()
	checkPulled(t, s, bun, sum)
}
