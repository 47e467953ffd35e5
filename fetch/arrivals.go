package fetch

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Arrivals are the blobs that Head left, while they are fetched into the Store.
type Arrivals struct {
	blobs map[digest.Digest]*arrival
	ended chan struct{} // closed after err is set
	err   error
}

// An arrival is a blob that has arrived or failed once done is closed.
type arrival struct {
	done chan struct{}
	err  error
}

// Start fetches the blobs that Head left, and returns at once. They come about in the order of a bundle, so that it
// can be written meanwhile. A failed item does not keep the others from being fetched. End must be called.
func (j *Job) Start(ctx context.Context) *Arrivals {
	a := &Arrivals{blobs: make(map[digest.Digest]*arrival, len(j.later)), ended: make(chan struct{})}
	for d := range j.later {
		a.blobs[d] = &arrival{done: make(chan struct{})}
	}
	order := arrivalOrder(slices.Collect(maps.Values(j.later)), j.s.jobs)
	go func() {
		defer close(a.ended)
		j.s.each(len(order), func(i int) {
			b := a.blobs[order[i].digest]
			b.err = j.Fetch(ctx, order[i].digest)
			close(b.done)
		})
		failed := &failures{}
		for _, p := range j.plans {
			if p.done && p.err != nil { // otherwise Head failed and said so
				failed.add(&ItemError{
					Kind: p.pin.Kind, Ref: p.pin.Ref, Platform: p.pin.Platform, Err: p.err, Found: p.pin.WantedBy,
				})
			}
		}
		a.err = failed.err(ctx, j.items)
	}()
	return a
}

// smallBlob is the size up to which blobs are fetched first: configs of artifacts are among them, and a bundle has
// these before all other content.
const smallBlob = 64 << 10

// arrivalOrder sorts blobs for that many concurrent transfers. Small blobs come first, then blobs so large that the
// others would be there before them, then the rest by digest, as in a bundle.
func arrivalOrder(blobs []*task, jobs int) []*task {
	var total int64
	for _, t := range blobs {
		total += t.size
	}
	turn := func(t *task) int {
		switch {
		case t.size <= smallBlob:
			return 0
		case t.size >= total/int64(jobs):
			return 1
		}
		return 2
	}
	return slices.SortedFunc(slices.Values(blobs), func(a, b *task) int {
		return cmp.Or(cmp.Compare(turn(a), turn(b)), cmp.Compare(a.digest, b.digest))
	})
}

// Wait waits for a blob. The error is that of Job.Fetch. A blob that Head did not leave is there.
func (a *Arrivals) Wait(ctx context.Context, d digest.Digest) error {
	b := a.blobs[d]
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ended reports whether all blobs have arrived or failed.
func (a *Arrivals) Ended() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// End waits for all blobs. The error is *Errors with every failed item, joined with the context's error if that ended.
func (a *Arrivals) End() error {
	<-a.ended
	return a.err
}
