package registry_test

import (
	"fmt"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
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
				if o.Transport, err = registry.NewTransport(s.CAFile); err != nil {
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
