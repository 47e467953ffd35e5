package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
)

// progressStep is the number of bytes between two events of one upload.
const progressStep = 1 << 20

// A pusher is one run of Push.
type pusher struct {
	bundle  origin
	session *session
	target  target
	options PushOptions
	jobs    []*job // one for each item of the bundle, in its order
	blobs   []*sharedBlob
	tally   *tally
	jobsAt  map[spot][]*job // see holders
}

// A tally counts what a push did, and records the outcome of each item.
type tally struct {
	progress func(Event) // nil reports nothing
	dryRun   bool
	items    int // jobs that are not skipped
	total    int64
	abort    context.CancelCauseFunc

	mu       sync.Mutex
	done     int64
	ended    int
	counts   PushSummary // summary adds Items and Warnings
	warnings []string
}

func (p *pusher) push(ctx context.Context) (PushSummary, error) {
	i := slices.IndexFunc(p.jobs, func(j *job) bool { return j.dest != nil && j.err == nil })
	if i >= 0 {
		if err := p.session.login(ctx, p.jobs[i].repo); err != nil {
			return p.summary(), fmt.Errorf("push to %s: %w", p.target, err)
		}
		if p.options.Harbor != nil {
			site := &harborSite{
				session: p.session, jobs: p.jobs, options: *p.options.Harbor, dryRun: p.options.DryRun,
				logger: p.options.Logger,
				warn:   p.tally.warn, fresh: map[string]bool{}, refused: map[string]error{},
			}
			if err := site.prepare(ctx); err != nil {
				return p.summary(), fmt.Errorf("push to %s: %w", p.target, err)
			}
		}
	}
	inner, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	p.tally.abort = abort
	p.look(inner)
	broken := p.run(inner)
	err := errors.Join(p.failure(ctx, context.Cause(inner)), broken)
	if site := p.session.harbor; err == nil && site != nil {
		err = site.makeRobot(ctx)
	}
	return p.summary(), err
}

// run pushes everything, with at most Jobs concurrent operations. An item's manifests follow in the slot of its last
// blob, except those of referrers, which follow wave by wave. Its error is one of the bundle's pipe.
func (p *pusher) run(ctx context.Context) (broken error) {
	var g errgroup.Group
	g.SetLimit(p.options.Jobs)
	for _, j := range p.jobs {
		switch {
		case j.result.State == StateSkipped:
		case j.err != nil:
			p.tally.end(j, j.err)
		case j.pending == 0 && j.wave == 0:
			g.Go(func() error { p.finish(ctx, j); return nil })
		}
	}
	if from, ok := p.bundle.(*pipe); ok {
		broken = p.arrivals(ctx, from)
	} else {
		for _, b := range p.blobs {
			if ctx.Err() != nil {
				break
			}
			g.Go(func() error { p.place(ctx, b); return nil })
		}
	}
	_ = g.Wait() // errors are in the jobs
	for wave := 1; wave <= maxDepth; wave++ {
		for _, j := range p.jobs {
			if j.wave == wave && j.pending == 0 && !j.ended {
				g.Go(func() error { p.finish(ctx, j); return nil })
			}
		}
		_ = g.Wait()
	}
	return broken
}

// place sends a blob to all repositories that need it: to one after the other until one has it, from which the others
// can mount it, side by side.
func (p *pusher) place(ctx context.Context, b *sharedBlob) {
	p.query(ctx, b)
	from, broken := b.from(), error(nil) // broken: the blob itself is damaged
	rest := b.places
	for len(rest) > 0 && broken == nil && (from == "" || p.session.mountsUnknown()) {
		pl := rest[0]
		rest = rest[1:]
		has, err := p.placeOne(ctx, pl, b.desc, from)
		if has && from == "" {
			from = pl.repo.name
		}
		if errors.Is(err, bundle.ErrDamaged) {
			broken = err
		}
	}
	atOnce(rest, func(pl *place) {
		if broken != nil && pl.err == nil {
			pl.err = broken
		}
		_, _ = p.placeOne(ctx, pl, b.desc, from) // the error is in the jobs
	})
}

// query asks all repositories that need a blob whether they have it.
func (p *pusher) query(ctx context.Context, b *sharedBlob) {
	atOnce(b.places, func(pl *place) { pl.have, pl.err = p.has(ctx, pl, b.desc) })
}

// from returns a repository that had the blob before the push, "" if none had.
func (b *sharedBlob) from() string {
	for _, pl := range b.places {
		if pl.have {
			return pl.repo.name
		}
	}
	return ""
}

// maxPlaces bounds the repositories that one blob goes to at a time; the throttle bounds their requests.
const maxPlaces = 64

func atOnce(places []*place, f func(*place)) {
	var g errgroup.Group
	g.SetLimit(maxPlaces)
	for _, pl := range places {
		g.Go(func() error { f(pl); return nil })
	}
	_ = g.Wait() // there are none
}

// placeOne makes sure that a repository has a blob, after query.
func (p *pusher) placeOne(ctx context.Context, pl *place, d ocispec.Descriptor, from string) (has bool, err error) {
	if !p.tally.wanted(pl) {
		p.tally.advance(d.Size)
		return false, nil
	}
	err = pl.err
	switch {
	case err != nil:
	case pl.have:
		p.tally.count(func(c *PushSummary) { c.BlobsPresent++ })
		p.tally.advance(d.Size)
	case p.options.DryRun:
		p.tally.miss(pl, d, from)
	default:
		err = p.send(ctx, pl, d, from)
	}
	p.settleAll(ctx, []*place{pl}, err)
	return err == nil, err
}

// has reports whether a place has the blob.
func (p *pusher) has(ctx context.Context, pl *place, d ocispec.Descriptor) (bool, error) {
	if pl.repo.holds(d.Digest) {
		return true, nil
	}
	if !p.tally.wanted(pl) || p.session.isNew(pl.repo) {
		return false, nil
	}
	have, err := pl.repo.hasBlob(ctx, d)
	if err != nil {
		return false, fmt.Errorf("blob %s: %w", d.Digest, p.session.explain(pl.repo.name, err))
	}
	return have, nil
}

// miss counts content that a dry run would send.
func (t *tally) miss(pl *place, d ocispec.Descriptor, from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if from == "" {
		t.counts.BlobsMissing++
		t.counts.BytesMissing += d.Size
	}
	for _, j := range pl.jobs {
		j.sent = true
	}
}

// wanted reports whether an item that has not failed needs the place.
func (t *tally) wanted(pl *place) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(pl.jobs, func(j *job) bool { return !j.ended })
}

func (p *pusher) send(ctx context.Context, pl *place, d ocispec.Descriptor, from string) error {
	if pipe, ok := p.bundle.(*pipe); ok {
		if err := pipe.await(ctx, d.Digest); err != nil {
			return fmt.Errorf("blob %s: read from the pipe: %w", d.Digest, err)
		}
	}
	return p.sendFrom(ctx, pl, d, from,
		func(offset int64) (io.ReadCloser, error) { return p.bundle.Blob(ctx, d.Digest, offset) })
}

func (p *pusher) sendFrom(ctx context.Context, pl *place, d ocispec.Descriptor, from string, open opener) error {
	err := p.sendBlob(ctx, pl, d, from, open)
	if te, refused := errors.AsType[*transport.Error](err); refused && te.StatusCode == http.StatusBadRequest {
		if f, ok := p.bundle.(file); ok {
			err = f.blame(ctx, d.Digest, err)
		}
	}
	if err == nil || errors.Is(err, bundle.ErrDamaged) {
		return err
	}
	return fmt.Errorf("blob %s: %w", d.Digest, p.session.explain(pl.repo.name, err))
}

func (p *pusher) sendBlob(ctx context.Context, pl *place, d ocispec.Descriptor, from string, open opener) error {
	m := &meter{advance: p.tally.advance}
	mounted, err := pl.repo.sendBlob(ctx, d, from, m.opener(open))
	if err != nil {
		m.end(0)
		return err
	}
	m.end(d.Size)
	p.tally.arrived(pl, d, mounted)
	return nil
}

// arrived counts a blob that a place now has.
func (t *tally) arrived(pl *place, d ocispec.Descriptor, mounted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mounted {
		t.counts.BlobsMounted++
	} else {
		t.counts.BlobsSent++
		t.counts.BytesSent += d.Size
	}
	for _, j := range pl.jobs {
		j.sent = true
	}
}

// settle counts one blob of an item as done, or fails the item; the manifests follow the last blob.
func (p *pusher) settle(ctx context.Context, j *job, err error) {
	if err != nil {
		p.tally.end(j, err)
		return
	}
	p.tally.mu.Lock()
	j.pending--
	ready := j.pending == 0 && !j.ended && j.wave == 0
	p.tally.mu.Unlock()
	if ready {
		p.finish(ctx, j)
	}
}

// finish sends an item's manifests and its tag, and compares the tag's digest.
func (p *pusher) finish(ctx context.Context, j *job) {
	if ctx.Err() != nil {
		return
	}
	if j.wave > 0 {
		if err := p.subjectLost(j); err != nil {
			p.tally.end(j, err)
			return
		}
	}
	if p.options.DryRun {
		p.finishDry(ctx, j)
		return
	}
	if err := p.put(ctx, j); err != nil {
		p.tally.end(j, p.session.explain(j.repo.name, err))
		return
	}
	p.tally.end(j, nil)
}

// put sends an item's manifests and its tag. Of twins, it makes sure that each tag has kept its content.
func (p *pusher) put(ctx context.Context, j *job) error {
	if j.twins != nil {
		j.twins.mu.Lock()
		defer j.twins.mu.Unlock()
	}
	final, err := p.manifestsOf(j).put(ctx, j.root, j.dest.Identifier())
	if err != nil {
		return err
	}
	p.tally.mu.Lock()
	j.result.Digest, j.result.Reduced = final.Digest, final.Digest != j.item.Descriptor.Digest
	p.tally.mu.Unlock()
	if j.twins == nil {
		return nil
	}
	j.twins.tagged = append(j.twins.tagged, j)
	for _, twin := range j.twins.tagged {
		have, err := j.repo.manifest(ctx, twin.dest.Identifier(), twin.item.Descriptor.MediaType)
		if err != nil {
			return err
		}
		if have != twin.result.Digest {
			other := j.twins.tagged[0]
			return &plainError{
				text: fmt.Sprintf("the registry takes %s and %s for one tag: push them under different prefixes, or leave one out",
					other.dest.Name(), j.dest.Name()),
				cause: errOtherContent,
			}
		}
	}
	return nil
}

// finishDry counts the manifests that would be sent.
func (p *pusher) finishDry(ctx context.Context, j *job) {
	m, final := p.manifestsOf(j), j.item.Descriptor.Digest
	for _, n := range j.nodes {
		there := n.have == n.desc.Digest
		if !there && len(n.absent) > 0 {
			var d ocispec.Descriptor
			d, there, _ = m.alreadyReduced(ctx, n, n.have) // an unknown manifest would be sent
			if there && n == j.root {
				final = d.Digest
			}
		}
		if !there && len(n.absent) > 0 && j.pinned {
			p.tally.warn(fmt.Sprintf(
				"%s: its digest is pinned, and the bundle lacks platforms of its index: a registry that requires all of them (docker-registry 2.8, Harbor) refuses it; "+
					"a bundle built with indexes: pinned has them", j.item))
		}
		if !there {
			p.tally.count(func(c *PushSummary) { c.BytesMissing += n.desc.Size; j.sent = true })
		}
	}
	p.tally.count(func(*PushSummary) { j.result.Digest, j.result.Reduced = final, final != j.item.Descriptor.Digest })
	p.tally.end(j, nil)
}

// end records the outcome of an item, once. An error that concerns all items ends the run.
func (t *tally) end(j *job, err error) {
	t.mu.Lock()
	if j.ended {
		t.mu.Unlock()
		return
	}
	j.ended, j.err = true, err
	t.ended++
	switch {
	case err != nil:
		j.result.State = StateFailed
	case j.sent && t.dryRun:
		j.result.State = StateMissing
	case j.sent:
		j.result.State = StatePushed
	default:
		j.result.State = StatePresent
	}
	t.event(j.item.String(), err)
	t.mu.Unlock()
	if isFatal(err) {
		t.abort(err)
	}
}

func (t *tally) count(add func(*PushSummary)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add(&t.counts)
}

func (t *tally) warn(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.warnings = append(t.warnings, text)
}

func (t *tally) advance(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.event("", nil)
}

// event reports; t.mu is held, so events come one at a time and in order.
func (t *tally) event(finished string, err error) {
	if t.progress == nil {
		return
	}
	t.progress(Event{Done: t.done, Total: t.total, ItemsDone: t.ended, Items: t.items, Finished: finished, Err: err})
}

func (p *pusher) summary() PushSummary {
	p.tally.mu.Lock()
	defer p.tally.mu.Unlock()
	s := p.tally.counts
	s.Registry, s.Bundle = p.target.String(), p.bundle.Digest()
	if p.session.harbor != nil {
		s.Harbor = &p.session.harbor.result
	}
	s.Warnings = slices.Sorted(slices.Values(p.tally.warnings))
	for _, j := range p.jobs {
		r := j.result
		switch {
		case r.State == StateSkipped:
			s.ItemsSkipped++
		case r.State == StatePushed:
			s.ItemsPushed++
		case r.State == StatePresent:
			s.ItemsPresent++
		case r.State == StateMissing:
			s.ItemsMissing++
		default: // also items that a stopped run did not reach
			r.State = StateFailed
			s.ItemsFailed++
		}
		if j.err != nil {
			r.Error = j.err.Error()
		}
		s.Items = append(s.Items, r)
	}
	return s
}

// failure collects the errors: one for each item, or a single one that stopped all.
func (p *pusher) failure(ctx context.Context, cause error) error {
	var errs []error
	open := 0
	for _, j := range p.jobs {
		switch {
		case j.result.State == StateSkipped || j.ended && j.err == nil:
		case j.err == nil || isFatal(j.err) || errors.Is(j.err, context.Canceled):
			open++
		default:
			errs = append(errs, fmt.Errorf("%s to %s: %w", j.item, cmp.Or(j.result.Destination, p.target.String()),
				j.err))
		}
	}
	if open == 0 {
		return errors.Join(errs...)
	}
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	return errors.Join(append([]error{fmt.Errorf(
		"push to %s: %w; %d items are incomplete, and running it again continues", p.target, cause, open)}, errs...)...)
}

// A meter counts the bytes of one blob over all attempts.
type meter struct {
	advance  func(n int64) // receives the change in bytes
	mu       sync.Mutex
	counted  int64
	awaiting int64
}

// opener counts the bytes read from a blob.
func (m *meter) opener(open opener) opener {
	return func(offset int64) (io.ReadCloser, error) {
		rc, err := open(offset)
		if err != nil {
			return nil, err
		}
		m.end(offset)
		return &meteredBody{ReadCloser: rc, meter: m}, nil
	}
}

func (m *meter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.awaiting += int64(n); m.awaiting >= progressStep {
		m.advance(m.awaiting)
		m.counted, m.awaiting = m.counted+m.awaiting, 0
	}
}

// end sets the blob's final count.
func (m *meter) end(size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counted != size {
		m.advance(size - m.counted)
	}
	m.counted, m.awaiting = size, 0
}

type meteredBody struct {
	io.ReadCloser
	meter *meter
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(n)
	return n, err
}
