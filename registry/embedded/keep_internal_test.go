package embedded

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A tagCounter counts how often a tag is read.
type tagCounter struct {
	driver.StorageDriver
	reads atomic.Int64
}

// GetContent implements driver.StorageDriver.
func (c *tagCounter) GetContent(ctx context.Context, name string) ([]byte, error) {
	if strings.Contains(name, "/_manifests/tags/") {
		c.reads.Add(1)
	}
	return c.StorageDriver.GetContent(ctx, name)
}

// TestCollectReadsATagOnce: a collection of untagged manifests reads each tag once, and not once for each manifest.
func TestCollectReadsATagOnce(t *testing.T) {
	const tags = 40
	dir := t.TempDir()
	r, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range tags {
		body := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"number":"%d"}}`,
			ocispec.MediaTypeImageIndex, i)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("/v2/app/manifests/%d", i),
			strings.NewReader(body))
		req.Header.Set("Content-Type", ocispec.MediaTypeImageIndex)
		w := httptest.NewRecorder()
		if r.ServeHTTP(w, req); w.Code != http.StatusCreated {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	content := filesystem.New(filesystem.DriverParameters{RootDirectory: dir, MaxThreads: threads})
	counter := &tagCounter{StorageDriver: content}
	registry, err := storage.NewRegistry(t.Context(), counter, storage.EnableDelete)
	if err != nil {
		t.Fatal(err)
	}
	if err := storage.MarkAndSweep(t.Context(), counter, keep(registry, links{content}),
		storage.GCOpts{RemoveUntagged: true, Quiet: true}); err != nil {
		t.Fatal(err)
	}
	if n := counter.reads.Load(); n != tags {
		t.Errorf("%d tags were read %d times", tags, n)
	}
	if again, err := Collect(t.Context(), CollectOptions{Dir: dir, Untagged: true}); err != nil ||
		again != (Collected{}) {
		t.Errorf("%+v, %v", again, err)
	}
}
