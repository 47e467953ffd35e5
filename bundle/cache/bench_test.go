package cache_test

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// BenchmarkCacheSmallBlobs keeps many small blobs, as 8 transfers at once do. Most of its time is the disk's for fsync.
func BenchmarkCacheSmallBlobs(b *testing.B) {
	const blobs = 2000
	for b.Loop() {
		c := bundletest.OpenCache(b, b.TempDir())
		var group errgroup.Group
		group.SetLimit(8)
		for i := range blobs {
			group.Go(func() error {
				content := fmt.Appendf(nil, "blob %d", i)
				d := digest.FromBytes(content)
				w, _, err := c.Begin(b.Context(), d.String())
				if err != nil {
					return err
				}
				defer w.Close()
				if _, err := w.Write(content); err != nil {
					return err
				}
				_, err = w.Commit(b.Context(), int64(len(content)), d)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/blobs, "µs/blob")
}

// BenchmarkCache measures the local part of a fetch: hash, compress, write.
func BenchmarkCache(b *testing.B) {
	const size = 64 << 20
	for name, content := range map[string][]byte{
		"text":   bundletest.Text(1, size),
		"random": bundletest.Random(1, size),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			c := bundletest.OpenCache(b, b.TempDir())
			for b.Loop() {
				w, _, err := c.Begin(b.Context(), "key")
				if err != nil {
					b.Fatal(err)
				}
				write(b, w, content)
				d, err := w.Commit(b.Context(), -1, "")
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Drop(d.Digest); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
