package embedded_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/registry/dirlock"
	"github.com/kkbundle/kkbundle/registry/embedded"
)

// collectVariable makes the test binary collect garbage in a directory, as a process that can be killed.
const collectVariable = "KKBUNDLE_TEST_COLLECT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(collectVariable); dir != "" {
		if _, err := embedded.Collect(context.Background(), embedded.CollectOptions{
			Dir:      dir,
			Untagged: true,
		}); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:forbidigo // this is main
		}
		return
	}
	m.Run()
}

// putIndex stores an index under a tag, or by its digest if the tag is "".
func putIndex(t *testing.T, base, tag string, children ...ocispec.Descriptor) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: children,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(data)
	if tag == "" {
		tag = d.String()
	}
	if status, _, body := send(t, http.MethodPut, base+"/manifests/"+tag, ocispec.MediaTypeImageIndex,
		data); status != http.StatusCreated {
		t.Fatalf("the index: %d %s", status, body)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: d, Size: int64(len(data))}
}

// A content is a registry's directory with images that are needed, and with garbage.
type content struct {
	dir     string
	needed  []string // "REPOSITORY/manifests/DIGEST" or "REPOSITORY/blobs/DIGEST"
	garbage int      // manifests that nothing needs
}

// someContent has an index in an index, both sparse, a signature of a child and one of that signature, a child and
// its layer with SHA-512 digests, and manifests without a tag.
func someContent(t *testing.T, garbage int) content {
	t.Helper()
	c := content{dir: t.TempDir(), garbage: garbage}
	host, stop := start(t, embedded.Options{Dir: c.dir})
	base := "http://" + host + "/v2/team/app"
	keep := func(kind string, ds ...ocispec.Descriptor) {
		for _, d := range ds {
			c.needed = append(c.needed, "team/app/"+kind+"/"+d.Digest.String())
		}
	}
	blob := func(text string) ocispec.Descriptor { return putBlob(t, base, []byte(text), digest.FromString(text)) }
	absent := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("arm64"), Size: 7}
	layer, other := blob("amd64"), putBlob(t, base, []byte("s390x"), digest.SHA512.FromString("s390x"))
	child := putManifest(t, base, "", nil, layer)
	far := putManifest(t, base, "", nil, other)
	_, _, data := send(t, http.MethodGet, base+"/manifests/"+far.Digest.String(), "", nil)
	alias := far
	alias.Digest = digest.SHA512.FromBytes(data)
	if status, _, body := send(t, http.MethodPut, base+"/manifests/"+alias.Digest.String(),
		ocispec.MediaTypeImageManifest, data); status != http.StatusCreated {
		t.Fatalf("a manifest with a SHA-512 digest: %d %s", status, body)
	}
	inner := putIndex(t, base, "", child, absent)
	outer := putIndex(t, base, "1.0", inner, alias, absent)
	signed := blob("signature")
	signature := putManifest(t, base, "", &child, signed)
	countersigned := blob("signature of the signature")
	countersignature := putManifest(t, base, "", &signature, countersigned)
	keep("blobs", layer, other, signed, countersigned)
	keep("manifests", child, alias, outer, signature, countersignature)
	for i := range garbage {
		putManifest(t, base, "", nil, blob(fmt.Sprint("garbage ", i)))
	}
	stop()
	http.DefaultClient.CloseIdleConnections()
	return c
}

// holds reads everything that is needed, and returns how many manifests of garbage are left.
func (c content) holds(t *testing.T) {
	t.Helper()
	host, stop := start(t, embedded.Options{Dir: c.dir, ReadOnly: true})
	defer stop()
	for _, path := range c.needed {
		status, _, body := send(t, http.MethodGet, "http://"+host+"/v2/"+path, "", nil)
		if strings.Contains(path, "/manifests/") && status == http.StatusNotFound { // send accepts images only
			status = http.StatusOK
			site{host}.ask(t, "GET /v2/"+path, "").has(t, http.StatusOK, "")
		}
		if d := digest.Digest(path[strings.LastIndexByte(path, '/')+1:]); status != http.StatusOK ||
			strings.Contains(path, "/blobs/") && d.Algorithm().FromBytes(body) != d {
			t.Errorf("%s is gone: %d", path, status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func (c content) collect(t *testing.T) embedded.Collected {
	t.Helper()
	done, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: c.dir, Untagged: true})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// TestCollectKeepsWhatASparseIndexNeeds: an index without some of its images, below another one, keeps the images
// that are there, their referrers, and content with SHA-512 digests. The collection neither fails nor removes them.
func TestCollectKeepsWhatASparseIndexNeeds(t *testing.T) {
	c := someContent(t, 3)
	if done := c.collect(t); done.Manifests != c.garbage {
		t.Errorf("%d manifests were removed, want %d", done.Manifests, c.garbage)
	}
	c.holds(t)
	if done := c.collect(t); done != (embedded.Collected{}) {
		t.Errorf("then still %+v", done)
	}
}

// TestTwoCollections: of collections at a time, one works and the others are refused.
func TestTwoCollections(t *testing.T) {
	c := someContent(t, 20)
	var mu sync.Mutex
	var wg sync.WaitGroup
	worked, manifests := 0, 0
	for range 4 {
		wg.Go(func() {
			done, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: c.dir, Untagged: true})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				worked++
			} else if !errors.As(err, new(*dirlock.LockedError)) {
				t.Error(err)
			}
			manifests += done.Manifests
		})
	}
	wg.Wait()
	if worked == 0 || manifests != c.garbage {
		t.Errorf("%d collections worked and removed %d manifests, want %d", worked, manifests, c.garbage)
	}
	c.holds(t)
}

// TestCollectionKilled kills collections at different times. What is needed stays whole, the registry starts, and
// another collection removes the rest.
func TestCollectionKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a run again and again")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := someContent(t, 60)
	killed := 0
	for i := range 6 {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), collectVariable+"="+c.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		left := c.manifestsOnDisk(t)
		for end := time.Now().Add(10 * time.Second); c.manifestsOnDisk(t) > left-i && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		_ = cmd.Process.Kill() // it may have ended
		if cmd.Wait() != nil {
			killed++
		}
		c.holds(t)
	}
	if killed == 0 {
		t.Error("every collection ended before it was killed")
	}
	c.collect(t)
	c.holds(t)
	if left := c.manifestsOnDisk(t); left != 6 { // with the inner index
		t.Errorf("%d manifests are left, want 6", left)
	}
}

// manifestsOnDisk counts the manifests of the repository by their SHA-256 digests.
func (c content) manifestsOnDisk(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.dir,
		"docker/registry/v2/repositories/team/app/_manifests/revisions/sha256/*/link"))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCollectBesideAnIndexAlone: a repository that has an index and none of its images, and so no blob, does not stop
// the collection.
func TestCollectBesideAnIndexAlone(t *testing.T) {
	c := someContent(t, 1)
	host, stop := start(t, embedded.Options{Dir: c.dir})
	absent := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("arm64"), Size: 7}
	alone := putIndex(t, "http://"+host+"/v2/alone", "1.0", absent)
	stop()
	c.needed = append(c.needed, "alone/manifests/"+alone.Digest.String())
	if done := c.collect(t); done.Manifests != c.garbage {
		t.Errorf("%d manifests were removed, want %d", done.Manifests, c.garbage)
	}
	c.holds(t)
}

// TestCollectRepositoryWithoutTags: the manifests of a repository that has no tag are removed with their blobs, and
// the next collection finds nothing broken.
func TestCollectRepositoryWithoutTags(t *testing.T) {
	c := someContent(t, 1)
	host, stop := start(t, embedded.Options{Dir: c.dir})
	base := "http://" + host + "/v2/untagged"
	putManifest(t, base, "", nil, putBlob(t, base, []byte("untagged"), digest.FromString("untagged")))
	stop()
	if done := c.collect(t); done.Manifests != c.garbage+1 {
		t.Errorf("%d manifests were removed, want %d", done.Manifests, c.garbage+1)
	}
	for _, untagged := range []bool{false, true} {
		done, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: c.dir, Untagged: untagged})
		if err != nil || done != (embedded.Collected{}) {
			t.Errorf("with untagged %t then still %+v, %v", untagged, done, err)
		}
	}
	c.holds(t)
}
