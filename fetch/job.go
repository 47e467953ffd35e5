package fetch

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Job is a lock whose manifests have been read: the transfer is known, and nothing large has been fetched. Either Run
// fetches everything, or Head fetches the blobs needed first. Start then fetches the rest, or Fetch does, blob by blob.
// Fetch may be called concurrently; the other methods may not.
type Job struct {
	s      *session
	items  int
	plans  []*plan
	tasks  []*task
	have   map[digest.Digest]int64
	later  map[digest.Digest]*task // the blobs that Head left to Fetch
	sum    Estimation
	failed *failures
}

// Prepare reads the manifests of a lock's items into the Store. It continues after failed items; Run and Head return
// those. The job must be closed.
func Prepare(ctx context.Context, l *manifest.Lock, o Options) (*Job, error) {
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	j := &Job{s: s, items: len(l.Items), failed: &failures{}}
	j.plans = s.plan(ctx, l.Items, j.failed)
	j.have = make(map[digest.Digest]int64)
	if j.tasks, j.sum, err = s.tasks(ctx, j.plans, j.have); err != nil {
		s.close()
		return nil, err
	}
	return j, nil
}

// Close ends the job's connections.
func (j *Job) Close() { j.s.close() }

// Failed returns the items whose manifests could not be read. The error of Run and Head includes them.
func (j *Job) Failed() []*ItemError { return slices.Clone(j.failed.list) }

// Estimate returns the transfer of Run.
func (j *Job) Estimate() Estimation { return j.sum }

// Cached yields the blobs that the Store has, with their sizes.
func (j *Job) Cached() iter.Seq2[digest.Digest, int64] {
	return maps.All(j.have)
}

// Missing yields the sizes of the blobs that the Store lacks, -1 if unknown, and whether Head fetches them.
func (j *Job) Missing() iter.Seq2[int64, bool] {
	return func(yield func(int64, bool) bool) {
		for _, t := range j.tasks {
			if !yield(t.size, t.first) {
				return
			}
		}
	}
}

// Run brings every item into the Store, like All.
func (j *Job) Run(ctx context.Context) ([]Item, error) {
	return j.transfer(ctx, j.tasks)
}

// Head fetches the blobs that define the items: charts, and files of unknown size. It returns every item; an error
// means that one of them is unavailable. Later lists the blobs left to Fetch.
func (j *Job) Head(ctx context.Context) ([]Item, error) {
	j.s.files.contentLater = true
	var first []*task
	j.later = make(map[digest.Digest]*task)
	for _, t := range j.tasks {
		if t.first {
			first = append(first, t)
			continue
		}
		j.later[t.digest] = t
		for _, p := range t.plans {
			p.pending--
			p.later++
		}
	}
	return j.transfer(ctx, first)
}

// Later returns the blobs that Head left to Fetch, with sizes.
func (j *Job) Later() []ocispec.Descriptor {
	out := make([]ocispec.Descriptor, 0, len(j.later))
	for d, t := range j.later {
		out = append(out, ocispec.Descriptor{MediaType: t.mediaType, Digest: d, Size: t.size})
	}
	return out
}

// Fetch fetches a blob that Head left out; for other blobs it does nothing. The error is *Errors with every item that
// needs the blob.
func (j *Job) Fetch(ctx context.Context, d digest.Digest) error {
	t := j.later[d]
	if t == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	err := t.run(ctx)
	t.ended.Do(func() { j.tell(t, err) })
	if err == nil {
		return nil
	}
	failed := &failures{}
	for _, p := range t.plans {
		failed.add(&ItemError{
			Kind: p.pin.Kind, Ref: p.pin.Ref, Platform: p.pin.Platform, Err: err, Found: p.pin.WantedBy,
		})
	}
	return failed.err(ctx, j.items)
}

// tell reports the items whose last blob has arrived or failed.
func (j *Job) tell(t *task, err error) {
	for _, p := range t.plans {
		if err != nil {
			p.settle(err)
		}
		p.mu.Lock()
		p.later--
		last := p.later == 0 && p.done // otherwise Head failed and said so
		p.mu.Unlock()
		if last {
			j.s.finish(p.pin, p.err, &failures{})
		}
	}
}

// transfer fetches blobs concurrently and returns the completed items.
func (j *Job) transfer(ctx context.Context, tasks []*task) ([]Item, error) {
	j.s.events.count(j.sum.Download+j.sum.Resumed, 0, j.sum.Cached)
	for _, p := range j.plans {
		if p.pending == 0 {
			j.s.complete(ctx, p, j.failed)
		}
	}
	j.s.each(len(tasks), func(i int) {
		err := context.Cause(ctx)
		if err == nil {
			err = tasks[i].run(ctx)
		}
		for _, p := range tasks[i].plans {
			if p.arrived(err) {
				j.s.complete(ctx, p, j.failed)
			}
		}
	})
	var items []Item
	for _, p := range j.plans {
		if p.done {
			items = append(items, p.item())
		}
	}
	return items, j.failed.err(ctx, j.items)
}
