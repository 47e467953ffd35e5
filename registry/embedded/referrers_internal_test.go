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
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A readCounter counts what is read.
type readCounter struct {
	driver.StorageDriver
	reads atomic.Int64
}

// GetContent implements driver.StorageDriver.
func (c *readCounter) GetContent(ctx context.Context, name string) ([]byte, error) {
	c.reads.Add(1)
	return c.StorageDriver.GetContent(ctx, name)
}

// TestManifestsAreReadAtTheFirstQuestionOnly: the second question about a repository reads no manifest. Questions
// about names that are no repositories, which anybody may ask, take no memory.
func TestManifestsAreReadAtTheFirstQuestionOnly(t *testing.T) {
	dir, subject := t.TempDir(), digest.FromString("subject")
	r, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[],"subject":{"mediaType":%q,"digest":%q,"size":7}}`,
		ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, subject)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/v2/app/manifests/1", strings.NewReader(body))
	req.Header.Set("Content-Type", ocispec.MediaTypeImageIndex)
	w := httptest.NewRecorder()
	if r.ServeHTTP(w, req); w.Code != http.StatusCreated {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files := filesystem.New(filesystem.DriverParameters{RootDirectory: dir, MaxThreads: threads})
	content := &readCounter{StorageDriver: files}
	registry, err := storage.NewRegistry(t.Context(), content)
	if err != nil {
		t.Fatal(err)
	}
	s := newSubjects(registry, links{files})
	ask := func(repo string, d digest.Digest) int {
		found, err := s.of(t.Context(), repo, d)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if n := ask("app", subject); n != 1 {
		t.Errorf("%d referrers", n)
	}
	before := content.reads.Load()
	if n := ask("app", digest.FromString("without referrers")); n != 0 || content.reads.Load() != before {
		t.Errorf("%d referrers; the second question read %d files", n, content.reads.Load()-before)
	}
	for i := range 10 {
		ask(fmt.Sprintf("no/such/%d", i), subject)
	}
	if len(s.repos) != 1 {
		t.Errorf("%d repositories are remembered", len(s.repos))
	}
}
