package manifest_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
)

// TestLockOf100000Pins has a lock of the size that MaxLockSize is for, with names of usual length.
func TestLockOf100000Pins(t *testing.T) { //nolint:paralleltest // measures the memory of the process
	if testing.Short() {
		t.Skip("a lock of 100,000 items is written and read")
	}
	l := manifest.Lock{
		Metadata: manifest.Metadata{Name: "big", Version: "1.0.0"},
		Manifest: digest.FromString("x").String(),
	}
	for i := range 100_000 {
		name := fmt.Sprintf("registry.example.com/team/product/component-%06d", i)
		l.Items = append(l.Items, manifest.Pin{
			Kind: manifest.ItemImage, Ref: name + ":v1.30.2-rev.4", Name: name, Version: "v1.30.2-rev.4",
			Digest: digest.FromString(name), Size: 4711,
			MediaType: "application/vnd.oci.image.index.v1+json", Platforms: []string{"linux/amd64", "linux/arm64"},
			Verified: manifest.VerifiedUpstream,
		})
	}
	data, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := manifest.ParseLock("big.lock.yaml", data)
	if err != nil || len(back.Items) != len(l.Items) {
		t.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d MiB of text, %d MiB from the system", len(data)>>20, m.Sys>>20)
}

// BenchmarkCoversSigned compares locks with manifests that require a signature of each image. The time for each image
// does not grow with their number.
func BenchmarkCoversSigned(b *testing.B) {
	for _, n := range []int{2_000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var m manifest.Bundle
			var l manifest.Lock
			for i := range n {
				name := fmt.Sprintf("registry.example.com/team/component-%06d:v1.0.0", i)
				m.Images = append(m.Images, manifest.Image{Name: name, Verify: &manifest.Verify{Key: "cosign.pub"}})
				l.Items = append(l.Items, manifest.Pin{
					Kind: manifest.ItemImage, Ref: name,
					Digest: digest.FromString(name), Key: "cosign.pub",
				})
			}
			sum, err := m.Fingerprint()
			if err != nil {
				b.Fatal(err)
			}
			l.Manifest = sum.String()
			for b.Loop() {
				if err := l.Covers(&m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/image")
		})
	}
}
