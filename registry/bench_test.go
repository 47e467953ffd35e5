package registry_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
	"github.com/kkbundle/kkbundle/web/dial"
)

// BenchmarkPushBlob sends one incompressible layer to a registry on disk, anew each time.
func BenchmarkPushBlob(b *testing.B) {
	const size = 128 << 20
	bun := bigBundle(b, size)
	for _, what := range []string{"http", "https"} {
		b.Run(what, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer() // a registry without the blob
				s, err := registrytest.New(registrytest.Options{Dir: b.TempDir(), TLS: what == "https"})
				if err != nil {
					b.Fatal(err)
				}
				o := options(s)
				if o.Transport, err = dial.NewTransport(dial.Files{CA: s.CAFile}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := registry.Push(b.Context(), bun.Reader, o); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkPushAgain asks for 200 images that are all there.
func BenchmarkPushAgain(b *testing.B) {
	builder := bundletest.NewBuilder(b)
	for i := range 200 {
		builder.Image(fmt.Sprintf("a.example/app%d:1", i), bundletest.RandomImage(b, int64(i), 3, 500))
	}
	bun := builder.Bundle()
	s := registrytest.Start(b, registrytest.Options{})
	if _, err := registry.Push(b.Context(), bun.Reader, options(s)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := registry.Push(b.Context(), bun.Reader, options(s)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSeed compares a push of 20 images (700 MB that do not compress) into an empty registry on disk with plain
// parallel uploads of the same blobs out of memory. cpu-ms is what the process took, the registry included.
func BenchmarkSeed(b *testing.B) {
	const images, layers, size = 20, 4, 700 << 20 / 80
	builder := bundletest.NewBuilder(b)
	for i := range images {
		builder.Image(fmt.Sprintf("a.example/app%d:1", i), bundletest.RandomImage(b, int64(i), layers, size))
	}
	bun := builder.Bundle()
	b.Run("push", func(b *testing.B) {
		seed(b, func(s *registrytest.Server) error {
			o := options(s)
			var err error
			if o.Transport, err = dial.NewTransport(dial.Files{}); err != nil {
				return err
			}
			_, err = registry.Push(b.Context(), bun.Reader, o)
			return err
		})
	})
	b.Run("plain PUTs", func(b *testing.B) {
		blobs := map[string][]byte{}
		for _, d := range bun.Reader.Blobs() {
			data, err := bun.Reader.ReadBlob(b.Context(), d.Digest, d.Size)
			if err != nil {
				b.Fatal(err)
			}
			blobs[d.Digest.String()] = data
		}
		seed(b, func(s *registrytest.Server) error { return putAll(b, s, blobs) })
	})
}

func seed(b *testing.B, fill func(*registrytest.Server) error) {
	b.SetBytes(700 << 20)
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		s, err := registrytest.New(registrytest.Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		before := cpuTime(b)
		b.StartTimer()
		if err := fill(s); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		cpu += cpuTime(b) - before
		if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// putAll uploads blobs as simply as can be, eight at a time.
func putAll(b *testing.B, s *registrytest.Server, blobs map[string][]byte) error {
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	var g errgroup.Group
	g.SetLimit(8)
	send := func(method, address string, body []byte) (*http.Response, error) {
		req, err := http.NewRequestWithContext(b.Context(), method, address, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		return resp, resp.Body.Close()
	}
	for digest, data := range blobs {
		g.Go(func() error {
			resp, err := send(http.MethodPost, s.URL+"/v2/a/b/blobs/uploads/", nil)
			if err != nil {
				return err
			}
			resp, err = send(http.MethodPut, resp.Header.Get("Location")+"&digest="+digest, data)
			if err == nil && resp.StatusCode != http.StatusCreated {
				err = fmt.Errorf("%s: %s", digest, resp.Status)
			}
			return err
		})
	}
	return g.Wait()
}
