package bundle_test

import (
	"path/filepath"
	"testing"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// BenchmarkCreate writes a bundle of 512 MiB to a file, plain and encrypted.
func BenchmarkCreate(b *testing.B) {
	x := bundletest.NewBuilder(b)
	const size = 512 << 20
	x.File("local/random", "random", nil, bundletest.Random(1, size))
	key, err := age.GenerateX25519Identity()
	if err != nil {
		b.Fatal(err)
	}
	for name, recipients := range map[string][]age.Recipient{"plain": nil, "encrypted": {key.Recipient()}} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			path := filepath.Join(b.TempDir(), "x.kkb")
			before := cpuTime(b)
			for b.Loop() {
				if _, err := bundle.Create(b.Context(), path, x.Cache, x.Index,
					bundle.WriteOptions{Recipients: recipients}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}
