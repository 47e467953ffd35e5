package registry_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// killed lets so many requests through, as a process that is killed after them.
type killed struct {
	http.RoundTripper
	mu   sync.Mutex
	left int
}

var errKilled = errors.New("killed")

func (k *killed) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	defer k.mu.Unlock() // one after the other: what has been answered is known
	if k.left--; k.left < 0 {
		return nil, errKilled
	}
	return k.RoundTripper.RoundTrip(r)
}

// TestPushKilledAnywhere kills a push after each of its requests, without a word to the registry, and runs it again:
// what had arrived is not sent twice, and everything is there.
func TestPushKilledAnywhere(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.ImageIndex("a.example/multi:1", bundletest.MultiImage(t, 2))
	b.Image("a.example/app:1", bundletest.RandomImage(t, 1, 2, 3000))
	b.Image("a.example/again:1", bundletest.RandomImage(t, 1, 2, 3000))
	bun := b.Bundle()
	whole := registrytest.Start(t, registrytest.Options{})
	push(t, bun, options(whole))
	requests, blobs := len(whole.Requests()), whole.Count("PUT", "/blobs/")
	for n := range requests {
		s := registrytest.Start(t, registrytest.Options{})
		o := options(s)
		o.Transport, o.Retries, o.Jobs = &killed{RoundTripper: s.Transport(), left: n}, -1, 2
		if sum, err := registry.Push(t.Context(), bun.Reader, o); err == nil {
			t.Errorf("killed after %d of %d requests: no error", n, requests)
		} else if sum.ItemsPushed+sum.ItemsPresent+sum.ItemsFailed != 3 {
			t.Errorf("killed after %d requests: %+v", n, sum)
		}
		sum := push(t, bun, options(s))
		if got := s.Count("PUT", "/blobs/"); got > blobs {
			t.Errorf("killed after %d requests: %d blobs were sent in both runs together, want %d", n, got, blobs)
		}
		checkPulled(t, s, bun, sum)
	}
}
