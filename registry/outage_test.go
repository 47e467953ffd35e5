package registry_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// outage fails every request with status for a while. It begins with the first request that begins matches, of which
// the registry still reads n bytes.
func outage(begins func(*http.Request) bool, n int64, status int, lasts time.Duration) registrytest.Fault {
	var mu sync.Mutex
	var until time.Time
	return registrytest.Fault{Times: -1, Effect: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			first := until.IsZero() && begins(r)
			if first {
				until = time.Now().Add(lasts)
			}
			down := time.Now().Before(until)
			mu.Unlock()
			switch {
			case first && n > 0:
				r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, n), broken{}))
				next.ServeHTTP(discard{http.Header{}}, r)
				fallthrough
			case down:
				w.WriteHeader(status)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}}
}

func isUpload(method string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == method && uploads.MatchString(r.URL.Path) }
}

// manyImages are images of one layer each, which fits into what a push from a pipe holds.
func manyImages(t *testing.T, n int, layer int64) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for i := range n {
		b.Image(fmt.Sprintf("a.example/app%d:1", i), bundletest.RandomImage(t, int64(100+i), 1, layer))
	}
	return b.Bundle()
}

// TestPushPipeOutage: everything fails for a second. Blobs from the pipe wait for their turn with the registry, and
// none has a turn while it waits for the pipe.
func TestPushPipeOutage(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]*bundletest.Bundle{
		"small": manyImages(t, 24, heldBytes-100_000),
		"large": manyImages(t, 4, largeLayer),
	} {
		for _, status := range []int{503, 500, 429} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				s := registrytest.Start(t, registrytest.Options{})
				begins := isUpload(http.MethodPut)
				if name == "large" {
					begins = isUpload(http.MethodPatch)
				}
				s.AddFaults(outage(begins, 0, status, time.Second))
				o := options(s)
				o.Jobs, o.Retries = 12, 0
				pipePushEnds(t, b, o)
				s.ClearFaults()
				checkPulled(t, s, b, pushPipe(t, b, options(s)))
			})
		}
	}
}

// TestPushPipeWaitsWithoutSlot: a large blob fills the pipe's memory, and its chunk is refused. The small blob behind
// it is not there yet and must not hold the only slot that the registry has left.
func TestPushPipeWaitsWithoutSlot(t *testing.T) {
	t.Parallel()
	frames := 2*min(runtime.GOMAXPROCS(0), 8) + 2 // in memory at a time, see bundle.Stream
	made := bundletest.NewBuilder(t)
	large := bundletest.RandomImage(t, 21, 1, int64(frames)*4<<20-1<<20)
	made.Image("a.example/a:1", large)
	small := bundletest.RandomImage(t, 22, 1, heldBytes/2)
	for seed := int64(23); layerOf(t, small) < layerOf(t, large); seed++ {
		small = bundletest.RandomImage(t, seed, 1, heldBytes/2)
	}
	made.Image("a.example/b:1", small) // behind the large one in the pipe
	b := made.Bundle()
	s := registrytest.Start(t, registrytest.Options{Dir: t.TempDir()})
	fault := outage(isUpload(http.MethodPatch), 0, 503, time.Second)
	at, asked, once := fault.Effect, make(chan struct{}), sync.Once{}
	question := layerOf(t, small)
	fault.Effect = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, question):
				once.Do(func() { close(asked) })
			case r.Method == http.MethodPatch:
				select {
				case <-asked:
					time.Sleep(time.Second) // the small blob's upload would begin
				case <-time.After(2 * time.Minute):
					t.Error("nothing was asked about the small blob while the large one was sent")
				}
			}
			at(next).ServeHTTP(w, r)
		})
	}
	s.AddFaults(fault)
	o := options(s)
	o.Jobs, o.Retries = 2, 0
	pipePushEnds(t, b, o)
}

// pipePushEnds pushes a bundle from a pipe, within five minutes: far more than a busy machine needs. A push that
// hangs may ignore its context: the limit is beside it.
func pipePushEnds(t *testing.T, b *bundletest.Bundle, o registry.PushOptions) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := pipePush(t.Context(), t, bytes.NewReader(content(t, b)), o)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the push hangs")
	}
}

func layerOf(t *testing.T, img v1.Image) string {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[0].Digest.String()
}

// TestPushOutageKeepsSession: a registry that is away for a second, its upload status included, gets the rest of a
// blob and not all of it again.
func TestPushOutageKeepsSession(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 500, 502, 503, 504} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{Dir: t.TempDir()}), bigBundle(t, bigLayer)
			s.AddFaults(outage(isUpload(http.MethodPut), bigLayer*3/4, status, time.Second))
			o := options(s)
			o.Jobs, o.Retries = 1, 0
			sum := push(t, b, o)
			checkPulled(t, s, b, sum)
			if again := s.Received() - bigLayer*3/4; again > bigLayer/2 {
				t.Errorf("%d bytes of %d were sent after the outage: the session was thrown away", again, bigLayer)
			}
		})
	}
}

// TestPushStatusNeverAnswers: a registry that answers the upload status with 500 for ever gets the blob anew.
func TestPushStatusNeverAnswers(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, bigLayer)
	s.AddFaults(
		registrytest.Fault{Method: "PUT", Path: uploads, Effect: cutInside(bigLayer / 2)},
		registrytest.Fault{Method: "GET", Path: uploads, Times: -1, Effect: registrytest.Fail(500, "0")},
	)
	o := options(s)
	o.Jobs, o.Retries = 1, 0
	sum := push(t, b, o)
	s.ClearFaults()
	checkPulled(t, s, b, sum)
}

// TestPushOutageRequests: in an outage that does not end, one blob costs its retries, and not their square; and the
// push ends with one error for all items.
func TestPushOutageRequests(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), manyImages(t, 30, 1000)
	s.AddFaults(outage(isUpload(http.MethodPut), 0, 503, time.Hour))
	o := options(s)
	o.Jobs, o.Retries = 4, 4
	s.ForgetRequests()
	_, err := registry.Push(t.Context(), b.Reader, o)
	if err == nil || strings.Count(err.Error(), "503 Service Unavailable") != 1 { // ports have 503 in them, too
		t.Errorf("got %v; want one error for all", err)
	}
	failed := 0
	blobs := map[string]int{}
	for _, r := range s.Requests() {
		if r.Status == 503 {
			failed++
			if r.Method == http.MethodHead {
				blobs[r.Path]++
			}
		}
	}
	for path, n := range blobs {
		if n > 5 {
			t.Errorf("%d requests for %s", n, path)
		}
	}
	t.Logf("%d requests failed", failed)
	if most := 4 * 5 * 2; failed > most { // each job's blob, and the repetitions of each
		t.Errorf("%d requests failed, want at most %d", failed, most)
	}
}
