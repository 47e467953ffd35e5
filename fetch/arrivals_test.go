package fetch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestStartFetchesInTheOrderOfABundle checks the order of requests with one job, and that an item ends with its
// content.
func TestStartFetchesInTheOrderOfABundle(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	var pins []manifest.Pin
	for i := range 8 {
		data := noise(uint64(i+1), 5000+i)
		pins = append(pins, filePin(s.put("/"+string(rune('a'+i)), data), data))
	}
	var mu sync.Mutex
	var ended []digest.Digest
	store := newStore(t)
	o := options(store, s)
	o.Jobs = 1
	o.Progress = func(e fetch.Event) {
		if e.Type != fetch.EventFinished {
			return
		}
		i := slices.IndexFunc(pins, func(p manifest.Pin) bool { return p.Ref == e.Ref })
		if _, ok, err := store.Stat(context.Background(), pins[i].Digest); !ok || err != nil || e.Err != nil {
			t.Errorf("%s is reported as finished before its content is there: %v, %v", e.Ref, err, e.Err)
		}
		mu.Lock()
		defer mu.Unlock()
		ended = append(ended, pins[i].Digest)
	}
	j, err := fetch.Prepare(t.Context(), lock(pins...), o)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := j.Start(t.Context())
	for _, p := range pins {
		if err := a.Wait(t.Context(), p.Digest); err != nil {
			t.Error(err)
		}
	}
	if err := a.End(); err != nil || !a.Ended() {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ended) != len(pins) || !slices.IsSorted(ended) {
		t.Errorf("items ended in the order %v", ended)
	}
}

// TestStartGoesOnAfterAFailedItem has two missing files among four: both are named, and the others are in the store.
func TestStartGoesOnAfterAFailedItem(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	one, two := noise(1, 5000), noise(2, 5000)
	pins := []manifest.Pin{
		filePin(s.url+"/missing", noise(8, 5000)), filePin(s.put("/one", one), one),
		filePin(s.url+"/gone", noise(9, 5000)), filePin(s.put("/two", two), two),
	}
	store := newStore(t)
	j, err := fetch.Prepare(t.Context(), lock(pins...), options(store, s))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := j.Start(t.Context())
	if err := a.Wait(t.Context(), pins[0].Digest); err == nil {
		t.Error("a missing file arrived")
	}
	var failed *fetch.Errors
	if err := a.End(); !errors.As(err, &failed) || len(failed.Failed) != 2 || failed.Items != len(pins) {
		t.Errorf("got %v", err)
	}
	for _, p := range []manifest.Pin{pins[1], pins[3]} {
		if _, ok, err := store.Stat(t.Context(), p.Digest); !ok || err != nil {
			t.Errorf("%s is missing: %v", p.Ref, err)
		}
	}
}
