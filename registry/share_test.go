package registry_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
	"github.com/kkbundle/kkbundle/web/dial"
)

// sharedImages are images of n repositories with the same layers and a config each.
func sharedImages(t *testing.T, n int) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	base := bundletest.RandomImage(t, 5, 1, 100_000)
	for i := range n {
		img, err := mutate.Config(base, v1.Config{Labels: map[string]string{"n": fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		b.Image(fmt.Sprintf("a.example/app%d:1", i), img)
	}
	return b.Bundle()
}

// A meeting holds requests until enough of them are open at the same time, a minute at most.
type meeting struct {
	want   int32
	here   atomic.Int32
	met    chan struct{}
	missed atomic.Bool
}

func newMeeting(want int32) *meeting { return &meeting{want: want, met: make(chan struct{})} }

func (m *meeting) wait() {
	if m.here.Add(1) == m.want {
		close(m.met)
	}
	select {
	case <-m.met:
	case <-time.After(time.Minute):
		m.missed.Store(true)
	}
}

// TestPushSharedBlobTogether: a blob that many repositories need goes to all of them side by side once one has it.
func TestPushSharedBlobTogether(t *testing.T) {
	t.Parallel()
	const repositories = 48
	s, b := registrytest.Start(t, registrytest.Options{}), sharedImages(t, repositories)
	together := newMeeting(4)
	var mounts atomic.Int32
	s.AddFaults(registrytest.Fault{
		Method: "POST", Path: regexp.MustCompile("/blobs/uploads/$"), Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				// the first one shows alone whether the registry mounts
				if r.URL.Query().Get("mount") != "" && mounts.Add(1) > 1 {
					together.wait()
				}
				next.ServeHTTP(w, r)
			})
		},
	})
	o := options(s)
	o.Jobs = 16
	sum := push(t, b, o)
	checkPulled(t, s, b, sum)
	if sum.BlobsMounted != repositories-1 {
		t.Errorf("%d blobs mounted, want %d", sum.BlobsMounted, repositories-1)
	}
	if together.missed.Load() {
		t.Error("fewer than 4 mounts at a time")
	}
}

// TestPushTokenForEachRepository: one token for each repository, and not another one for each mount.
func TestPushTokenForEachRepository(t *testing.T) {
	t.Parallel()
	const repositories = 24
	s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken}),
		sharedImages(t, repositories)
	sum := push(t, b, options(s))
	if sum.BlobsMounted != repositories-1 {
		t.Errorf("%d blobs mounted", sum.BlobsMounted)
	}
	if n := s.Count("GET", "token"); n > repositories+1 {
		t.Errorf("%d tokens for %d repositories", n, repositories)
	}
}

// TestPushMountsRefused: a registry that refuses to mount is not asked for every blob.
func TestPushMountsRefused(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), sharedImages(t, 30)
	asked := &atomic.Int32{}
	s.AddFaults(registrytest.Fault{Method: "POST", Times: -1, Effect: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("mount") != "" {
				asked.Add(1)
				w.WriteHeader(http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	o := options(s)
	o.Jobs = 2
	checkPulled(t, s, b, push(t, b, o))
	if n := asked.Load(); n > 6 {
		t.Errorf("asked %d times to mount", n)
	}
}

// TestPushFallbackListsTogether: lists of referrers of different images are written side by side.
func TestPushFallbackListsTogether(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	for i := range 12 {
		img := bundletest.RandomImage(t, int64(300+i), 1, 1000)
		name := fmt.Sprintf("a.example/app%d", i)
		b.Image(name+":1", img)
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		size, err := img.Size()
		if err != nil {
			t.Fatal(err)
		}
		config := b.Bytes([]byte("{}"))
		config.MediaType = ocispec.MediaTypeEmptyJSON
		m := b.JSON(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			ArtifactType: "application/x", Config: config, Layers: []ocispec.Descriptor{config},
			Subject: &ocispec.Descriptor{
				MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(d.String()),
				Size: size,
			},
		})
		m.MediaType, m.ArtifactType = ocispec.MediaTypeImageManifest, "application/x"
		b.Item(bundle.Item{Kind: bundle.KindReferrer, Ref: name + "@" + m.Digest.String(), Name: name, Descriptor: m})
	}
	together := newMeeting(2)
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: regexp.MustCompile("/manifests/sha256-"), Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				together.wait()
				next.ServeHTTP(w, r)
			})
		},
	})
	push(t, b.Bundle(), options(s))
	if together.missed.Load() {
		t.Error("one list at a time")
	}
}

// TestPushWithoutContinue has a proxy before the registry that never answers Expect: 100-continue. The wait for it is
// paid once, and not for every blob: only the first upload asks.
func TestPushWithoutContinue(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	b := manyImages(t, 6, 200_000)
	o := options(s)
	proxy, asked := deafProxy(t, s.Host)
	o.Registry, o.Jobs = proxy, 1
	rt, err := dial.NewTransport(dial.Files{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.CloseIdleConnections()
	rt.ExpectContinueTimeout = 100 * time.Millisecond
	o.Transport = rt
	push(t, b, o)
	if n := asked.Load(); n != 1 {
		t.Errorf("%d uploads asked, want 1", n)
	}
}

// deafProxy passes connections on without the header Expect. It returns its address and the number of these headers.
func deafProxy(t *testing.T, to string) (address string, asked *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = &atomic.Int32{}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() {
				defer server.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if n > 0 {
						header := []byte("Expect: 100-continue\r\n")
						asked.Add(int32(bytes.Count(buf[:n], header)))
						part := bytes.ReplaceAll(buf[:n], header, []byte("XXXXXX: 100-continue\r\n"))
						if _, err := server.Write(part); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := server.Read(buf)
					if n > 0 {
						if _, err := client.Write(buf[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			})
		}
	})
	return ln.Addr().String(), asked
}
