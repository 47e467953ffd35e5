package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// heldBytes is what these tests let a push hold of one blob, and largeLayer a blob of more than that.
const (
	heldBytes  = 2 << 20
	largeLayer = 5 << 20
)

func pipePush(ctx context.Context, t *testing.T, r io.Reader, o registry.PushOptions) (registry.PushSummary, error) {
	t.Helper()
	s, err := bundle.NewStream(ctx, r, o.Jobs)
	if err != nil {
		return registry.PushSummary{}, err
	}
	return registry.PushStreamWithin(ctx, s, o, heldBytes)
}

// pushPipe pushes what a bundle's file holds, from a pipe.
func pushPipe(t *testing.T, b *bundletest.Bundle, o registry.PushOptions) registry.PushSummary {
	t.Helper()
	sum, err := pipePush(t.Context(), t, bytes.NewReader(content(t, b)), o)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func content(t *testing.T, b *bundletest.Bundle) []byte {
	t.Helper()
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPushPipe(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]registrytest.Options{
		"plain": {}, "basic": {TLS: true, Auth: registrytest.AuthBasic},
		"token": {TLS: true, Auth: registrytest.AuthToken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, o), bundletest.New(t)
			first := pushPipe(t, b, options(s))
			checkPulled(t, s, b, first)
			s.ForgetRequests()
			again := pushPipe(t, b, options(s))
			if again.BytesSent != 0 || again.ItemsPresent != first.ItemsPushed {
				t.Errorf("again: %d bytes sent, %d of %d items there", again.BytesSent, again.ItemsPresent,
					first.ItemsPushed)
			}
		})
	}
}

// largeImages are two images of one layer that does not fit into memory, in two repositories.
func largeImages(t *testing.T) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	img := bundletest.RandomImage(t, 21, 1, largeLayer)
	b.Image("a.example/one:1", img)
	b.Image("a.example/two:1", img)
	return b.Bundle()
}

func TestPushPipeToSeveralRepositories(t *testing.T) {
	t.Parallel()
	refuse := registrytest.Fault{
		Method: "POST", Path: regexp.MustCompile("(one|two)/blobs/uploads/$"), Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.URL.RawQuery = "" // it opens a session instead
				next.ServeHTTP(w, r)
			})
		},
	}
	for name, tt := range map[string]struct {
		faults        []registrytest.Fault
		sent, mounted int
	}{
		"taken over":     {nil, 2, 2},                          // the config shows that it can be
		"not taken over": {[]registrytest.Fault{refuse}, 4, 0}, // the layer goes to both at once
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{Faults: tt.faults}), largeImages(t)
			o := options(s)
			o.Jobs = 1 // the config first
			sum := pushPipe(t, b, o)
			checkPulled(t, s, b, sum)
			if sum.BlobsSent != tt.sent || sum.BlobsMounted != tt.mounted {
				t.Errorf("%d blobs sent and %d mounted, want %d and %d", sum.BlobsSent, sum.BlobsMounted, tt.sent,
					tt.mounted)
			}
		})
	}
}

// TestPushPipeRecovers has what breaks in the middle of a blob that cannot be read again.
func TestPushPipeRecovers(t *testing.T) {
	t.Parallel()
	b := bigBundle(t, largeLayer)
	uploads := regexp.MustCompile(`/blobs/uploads/.`)
	for name, faults := range map[string][]registrytest.Fault{
		"chunks cut":           {{Method: "PATCH", Path: uploads, Times: 2, Effect: registrytest.CutRequest(100_000)}},
		"503":                  {{Method: "PATCH", Path: uploads, Times: 2, Effect: registrytest.Fail(503, "0")}},
		"answer cut":           {{Method: "PUT", Path: uploads, Times: 1, Effect: registrytest.CutRequest(0)}},
		"503 at the end":       {{Method: "PUT", Path: uploads, Times: 1, Effect: registrytest.Fail(503, "0")}},
		"session not opened":   {{Method: "POST", Times: 1, Effect: registrytest.Fail(503, "0")}},
		"chunks are too large": {{Method: "PATCH", Path: uploads, Times: 1, Effect: registrytest.Fail(413, "")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{Faults: faults})
			sum := pushPipe(t, b, options(s))
			s.ClearFaults()
			checkPulled(t, s, b, sum)
		})
	}
}

// TestPushPipeContinues loses what cannot be read again: the next run brings it.
func TestPushPipeContinues(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, largeLayer)
	s.AddFaults(registrytest.Fault{
		Method: "PATCH", Path: regexp.MustCompile(`/blobs/uploads/.`), Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.Header.Get("Content-Range"), "0-") {
					w.WriteHeader(http.StatusNotFound)
					_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}`)
					return
				}
				next.ServeHTTP(w, r)
			})
		},
	}, registrytest.Fault{
		Method: "GET", Path: regexp.MustCompile(`/blobs/uploads/.`), Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	_, err := pipePush(t.Context(), t, bytes.NewReader(content(t, b)), options(s))
	if err == nil || !strings.Contains(err.Error(), "cannot be read again: run the same push again") {
		t.Fatalf("got %v", err)
	}
	s.ClearFaults()
	checkPulled(t, s, b, pushPipe(t, b, options(s)))
}

// TestPushPipeBreaks has a pipe that ends early, or fails, or is stopped: what came is there, and the next run
// completes it.
func TestPushPipeBreaks(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.Image("a.example/one:1", bundletest.RandomImage(t, 31, 2, 100_000))
	b.Image("a.example/two:1", bundletest.RandomImage(t, 32, 1, largeLayer))
	made := b.Bundle()
	data := content(t, made)
	cable := errors.New("the cable is out")
	for name, tt := range map[string]struct {
		rest io.Reader
		want error
	}{
		"ends":  {bytes.NewReader(nil), bundle.ErrDamaged},
		"fails": {readerFunc(func([]byte) (int, error) { return 0, cable }), cable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{100, len(data) / 2, len(data) - 300} {
				s := registrytest.Start(t, registrytest.Options{})
				_, err := pipePush(t.Context(), t, io.MultiReader(bytes.NewReader(data[:n]), tt.rest), options(s))
				if !errors.Is(err, tt.want) {
					t.Errorf("after %d bytes: %v", n, err)
				}
				checkPulled(t, s, made, pushPipe(t, made, options(s)))
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		s := registrytest.Start(t, registrytest.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		pr, pw := io.Pipe()
		defer pw.Close()
		go func() {
			_, _ = pw.Write(data[:len(data)/2])
			cancel()
		}()
		if _, err := pipePush(ctx, t, pr, options(s)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		checkPulled(t, s, made, pushPipe(t, made, options(s)))
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestPushPipeDamaged wants the item of a damaged blob to fail, and the others to arrive.
func TestPushPipeDamaged(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{100_000, largeLayer} {
		s := registrytest.Start(t, registrytest.Options{})
		b := bundletest.NewBuilder(t)
		b.Image("a.example/bad:1", bundletest.RandomImage(t, 41, 1, size))
		b.Image("a.example/good:1", bundletest.RandomImage(t, 42, 1, size))
		made := b.Bundle()
		data := content(t, made)
		img := bundletest.RandomImage(t, 41, 1, size)
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		rc, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(rc)
		if err != nil {
			t.Fatal(err)
		}
		i := bytes.Index(data, layer[60_000:61_000])
		if i < 0 {
			t.Fatal("the layer is not stored as it is")
		}
		data[i] ^= 1
		sum, err := pipePush(t.Context(), t, bytes.NewReader(data), options(s))
		if !errors.Is(err, bundle.ErrDamaged) || states(sum)[registry.StatePushed] != 1 ||
			states(sum)[registry.StateFailed] != 1 {
			t.Errorf("%d bytes: %v, %v", size, states(sum), err)
		}
	}
}
