package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// A plan is the work for one pinned item.
type plan struct {
	pin    manifest.Pin
	root   ocispec.Descriptor
	absent []digest.Digest
	blobs  []blob
	// finish makes the item's own manifest once its blobs are there; nil if upstream has one.
	finish func(context.Context) (ocispec.Descriptor, error)

	mu      sync.Mutex
	pending int // blobs not yet fetched
	later   int // blobs that Head left, not yet fetched
	err     error
	done    bool
}

// A blob is content that an item needs.
type blob struct {
	digest    digest.Digest
	mediaType string                      // "" if unknown
	size      int64                       // -1 if unknown
	first     bool                        // required to finish the item
	fetch     func(context.Context) error // fetches it into the store; a known size is already in the session's total
}

// blobOf returns the content that a download brings.
func blobOf(d *upstream.Download) blob {
	d.Planned = d.Size >= 0
	return blob{
		digest: d.Want, size: d.Size,
		fetch: func(ctx context.Context) error { return d.Loader.Fetch(ctx, d) },
	}
}

// maxOthers bounds the places to request a blob from that many images share: most are the same registry.
const maxOthers = 16

// needAll marks all blobs as required by finish.
func (p *plan) needAll() {
	for i := range p.blobs {
		p.blobs[i].first = true
	}
}

// A task is a missing blob with all items that need it.
type task struct {
	blob
	others []func(context.Context) error // further places that have the blob
	plans  []*plan
	ended  sync.Once // for the plans, the first time that the blob arrived or failed
}

// run fetches the blob from the first place that has it.
func (t *task) run(ctx context.Context) error {
	err := t.fetch(ctx)
	for _, fetch := range t.others {
		var store *upstream.StoreError
		if err == nil || ctx.Err() != nil || errors.As(err, &store) {
			return err
		}
		again := fetch(ctx)
		if again == nil {
			return nil
		}
		err = errors.Join(err, again)
	}
	return err
}

// plan reads everything needed before large transfers. Failed items are in failed.
func (s *session) plan(ctx context.Context, pins []manifest.Pin, failed *failures) []*plan {
	plans := make([]*plan, len(pins))
	referrers := pinnedReferrers(pins)
	s.each(len(pins), func(i int) {
		pin := pins[i]
		s.events.emit(Event{Type: EventStarted, Kind: pin.Kind, Ref: pin.Ref, Platform: pin.Platform})
		p, err := s.planItem(ctx, pin, referrers)
		if err != nil {
			s.finish(pin, err, failed)
			return
		}
		p.pin = pin
		plans[i] = p
	})
	return slices.DeleteFunc(plans, func(p *plan) bool { return p == nil })
}

func (s *session) planItem(ctx context.Context, pin manifest.Pin, referrers referrerPins) (*plan, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := upstream.CheckDigest(pin.Digest); err != nil {
		return nil, err
	}
	switch pin.Kind {
	case manifest.ItemImage:
		return s.images.plan(ctx, pin, referrers)
	case manifest.ItemReferrer:
		return s.images.planReferrer(ctx, pin)
	case manifest.ItemChart:
		return s.charts.plan(ctx, pin)
	case manifest.ItemFile:
		return s.files.plan(pin)
	case manifest.ItemTool:
		return s.files.planProgram(ctx, pin)
	case manifest.ItemGit:
		return s.repositories.plan(ctx, pin)
	}
	return nil, fmt.Errorf("unknown kind of item %q", pin.Kind)
}

// finish reports the end of an item, and adds it to failed if err is not nil.
func (s *session) finish(pin manifest.Pin, err error, failed *failures) {
	if err != nil {
		failed.add(&ItemError{
			Kind: pin.Kind, Ref: pin.Ref, Platform: pin.Platform, Err: err, Found: pin.WantedBy,
		})
	}
	s.events.emit(Event{Type: EventFinished, Kind: pin.Kind, Ref: pin.Ref, Platform: pin.Platform, Err: err})
}

// tasks merges the plans' blobs: each once, the largest first, so that the run does not end with a single long
// transfer. Blobs in the store go into have.
func (s *session) tasks(ctx context.Context, plans []*plan, have map[digest.Digest]int64) ([]*task, Estimation, error) {
	var sum Estimation
	byDigest := map[digest.Digest]*task{}
	var list []*task
	for _, p := range plans {
		for _, b := range p.blobs {
			size, known := have[b.digest]
			if !known && byDigest[b.digest] == nil {
				n, ok, err := s.cache.Store.Stat(ctx, b.digest)
				if err != nil {
					return nil, sum, fmt.Errorf("fetch: %w", &upstream.StoreError{Cause: err})
				}
				if ok {
					size, known, have[b.digest] = n, true, n
					sum.Cached += n
				}
			}
			if known {
				p.checkSize(b, size)
				continue
			}
			list = addTask(list, byDigest, p, b)
		}
		p.blobs = nil // a lock may have thousands of items
	}
	for _, t := range list {
		sum.Blobs++
		if t.size < 0 {
			sum.Unknown++
			continue
		}
		n, err := s.cache.Resumable(ctx, t.digest, t.size)
		if err != nil {
			return nil, sum, err
		}
		sum.Resumed += n
		sum.Download += t.size - n
	}
	slices.SortStableFunc(list, func(a, b *task) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.digest, b.digest))
	})
	return list, sum, nil
}

// addTask adds a blob of a plan. Plans come one after the other, so only the last plan of a task can be p.
func addTask(list []*task, byDigest map[digest.Digest]*task, p *plan, b blob) []*task {
	t := byDigest[b.digest]
	if t == nil {
		t = &task{blob: b}
		byDigest[b.digest] = t
		list = append(list, t)
	}
	if n := len(t.plans); n == 0 || t.plans[n-1] != p {
		if n > 0 && len(t.others) < maxOthers {
			t.others = append(t.others, b.fetch)
		}
		t.plans = append(t.plans, p)
		p.pending++
	}
	t.first = t.first || b.first || b.size < 0
	p.checkSize(b, t.size)
	return list
}

// checkSize compares a manifest's size of a blob with the known size.
func (p *plan) checkSize(b blob, size int64) {
	if b.size >= 0 && size >= 0 && b.size != size {
		p.settle(fmt.Errorf("blob %s: wrong size: expected %d bytes, got %d", b.digest, b.size, size))
	}
}

// settle records an error; the first one wins.
func (p *plan) settle(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = cmp.Or(p.err, err)
}

// arrived reports whether the plan's last blob has arrived or failed.
func (p *plan) arrived(err error) (last bool) {
	if err != nil {
		p.settle(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending--
	return p.pending == 0
}

// complete ends an item whose blobs have all arrived or failed.
func (s *session) complete(ctx context.Context, p *plan, failed *failures) {
	if p.err == nil && p.finish != nil {
		p.root, p.err = p.finish(ctx)
	}
	p.done = p.err == nil
	if p.done && p.later > 0 {
		return // the item ends with its last blob
	}
	s.finish(p.pin, p.err, failed)
}

func (p *plan) item() Item {
	return Item{
		Kind:       p.pin.Kind,
		Ref:        p.pin.Ref,
		Name:       p.pin.Name,
		Version:    p.pin.Version,
		Descriptor: annotated(p.root, p.pin),
		Absent:     p.absent,
	}
}

// An entry is an item of a manifest to pin.
type entry struct {
	kind, ref, platform string
	resolve             func(context.Context) ([]manifest.Pin, error) // returns the item and its attachments
}

// alone returns the outcome of an entry without attachments.
func alone(pin manifest.Pin, err error) ([]manifest.Pin, error) { return []manifest.Pin{pin}, err }

// resolve pins everything in the manifest, and the images found in its charts, concurrently.
func (s *session) resolve(ctx context.Context, b *manifest.Bundle) ([]manifest.Pin, error) {
	failed := &failures{}
	list := s.chartEntries(b)
	images := slices.Clone(b.Images)
	var find error
	var pins []manifest.Pin
	wanted := map[string][]string{}
	if s.find == nil {
		pins = s.pinAll(ctx, list, failed)
	} else {
		var found []Found
		charts := s.bring(ctx, b, failed)
		found, find = s.find(ctx, charts)
		for _, c := range charts {
			pins = append(pins, c.Pin)
		}
		images = append(images, additional(b.Images, found, wanted)...)
	}
	if err := s.announceFirstUse(ctx, b); err != nil {
		return nil, err
	}
	rest := s.otherEntries(b, images)
	for _, pin := range s.pinAll(ctx, rest, failed) {
		if pin.Kind == manifest.ItemImage {
			pin.WantedBy = wanted[pin.Ref]
		}
		pins = append(pins, pin)
	}
	for _, e := range failed.list {
		if e.Kind == manifest.ItemImage {
			e.Found = wanted[e.Ref]
		}
	}
	for _, pin := range pins {
		s.images.tellIndex(ctx, pin)
	}
	err := failed.err(ctx, len(list)+len(rest))
	if find != nil {
		return nil, errors.Join(err, find)
	}
	merged, twice := mergePins(pins)
	if err == nil && twice != nil {
		return nil, twice
	}
	return merged, err
}

// pinAll pins entries concurrently. Failed entries are in failed, not in the result.
func (s *session) pinAll(ctx context.Context, entries []entry, failed *failures) []manifest.Pin {
	pins := make([][]manifest.Pin, len(entries))
	s.each(len(entries), func(i int) {
		e := entries[i]
		s.events.emit(Event{Type: EventStarted, Kind: e.kind, Ref: e.ref, Platform: e.platform})
		err := context.Cause(ctx)
		var some []manifest.Pin
		if err == nil {
			some, err = e.resolve(ctx)
		}
		if err == nil {
			pins[i] = some
		}
		s.finish(manifest.Pin{Kind: e.kind, Ref: e.ref, Platform: e.platform}, err, failed)
	})
	return slices.Concat(pins...)
}

func (s *session) chartEntries(b *manifest.Bundle) []entry {
	var list []entry
	for _, c := range b.Charts {
		list = append(list, entry{
			manifest.ItemChart, chartLabel(c), "",
			func(ctx context.Context) ([]manifest.Pin, error) {
				return alone(s.charts.resolve(ctx, c))
			},
		})
	}
	return list
}

func (s *session) otherEntries(b *manifest.Bundle, images []manifest.Image) []entry {
	var list []entry
	for _, img := range images {
		list = append(list, entry{manifest.ItemImage, img.Name, "", func(ctx context.Context) ([]manifest.Pin, error) {
			return s.images.resolve(ctx, img)
		}})
	}
	for _, f := range s.platformFiles(b) {
		list = append(list, entry{
			manifest.ItemFile, manifest.FileURL(f.File, f.platform), f.platform,
			func(ctx context.Context) ([]manifest.Pin, error) {
				if f.err != nil {
					return nil, f.err
				}
				return alone(s.files.resolve(ctx, f.File, f.platform))
			},
		})
	}
	return slices.Concat(list, s.gitEntries(b), s.programEntries(b), s.packageEntries(b))
}

func (s *session) packageEntries(b *manifest.Bundle) (list []entry) {
	for _, set := range b.Packages {
		platforms, err := platformsOr(set.Platforms, s.images.platforms)
		if err != nil {
			platforms = []string{""}
		}
		for _, p := range platforms {
			list = append(list, entry{
				manifest.ItemFile, manifest.PackageRef(set.Distribution, ""), p,
				func(ctx context.Context) ([]manifest.Pin, error) {
					if err != nil {
						return nil, err
					}
					return s.packages.Resolve(ctx, set, p)
				},
			})
		}
	}
	return list
}

// mergePins sorts the pins and merges duplicates: the catalog and the manifest may both name an item.
func mergePins(pins []manifest.Pin) ([]manifest.Pin, error) {
	slices.SortStableFunc(pins, func(a, b manifest.Pin) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Platform, b.Platform))
	})
	var out []manifest.Pin
	for _, p := range pins {
		if len(out) > 0 {
			last := &out[len(out)-1]
			if last.Kind == p.Kind && last.Ref == p.Ref && last.Platform == p.Platform {
				if err := mergePin(last, p); err != nil {
					return nil, &Errors{
						Items:  len(pins),
						Failed: []*ItemError{{Kind: p.Kind, Ref: p.Ref, Platform: p.Platform, Err: err}},
					}
				}
				continue
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// mergePin merges another pin of the same item.
func mergePin(into *manifest.Pin, p manifest.Pin) error {
	switch {
	case into.Digest != p.Digest:
		return fmt.Errorf("named twice with different content, %s and %s: use different names", into.Digest, p.Digest)
	case into.Key != "" && p.Key != "" && into.KeyDigest != p.KeyDigest:
		return fmt.Errorf("named twice with different keys, %s and %s: keep one", into.Key, p.Key)
	case mustBeSigned(*into) && mustBeSigned(p) && (into.Identity != p.Identity || into.Issuer != p.Issuer ||
		into.RootDigest != p.RootDigest):
		return fmt.Errorf("named twice with different signers, %s and %s: keep one", cmp.Or(into.Identity, into.Key),
			cmp.Or(p.Identity, p.Key))
	}
	if !mustBeSigned(*into) {
		into.Key, into.KeyDigest = p.Key, p.KeyDigest
		into.Identity, into.Issuer, into.Root, into.RootDigest = p.Identity, p.Issuer, p.Root, p.RootDigest
	}
	into.Referrers = cmp.Or(into.Referrers, p.Referrers)
	into.Complete = into.Complete || p.Complete
	into.Platforms = union(into.Platforms, p.Platforms)
	into.Lacks = union(into.Lacks, p.Lacks)
	into.Provides = union(into.Provides, p.Provides)
	return nil
}

func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}
