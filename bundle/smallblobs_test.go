package bundle_test

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// BenchmarkCacheSmallBlobs keeps many small blobs, as 8 transfers at once do: what it costs is what the disk takes to sync.
func BenchmarkCacheSmallBlobs(b *testing.B) {
	const blobs = 2000
	for b.Loop() {
		c := openCache(b, b.TempDir())
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
