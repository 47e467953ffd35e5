// Package builder makes bundles on the connected side. Load reads a manifest with everything it names. The Project
// then builds the bundle (Build), makes a lock (Resolve) or lists the images (Images).
//
// Charts and YAML come from strangers, so a child process searches them for images: this program, started with
// sandbox.Command. Main of a program that uses this package therefore begins like this:
//
//	if len(os.Args) > 1 && os.Args[1] == sandbox.Command {
//		if err := build.Tasks().Run(os.Stdin, os.Stdout); err != nil {
//			log.Fatal(err)
//		}
//		return
//	}
package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/encoders"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Result describes a bundle that was built.
type Result struct {
	bundle.Summary
	Index      bundle.Index
	Lock       *manifest.Lock
	Fetched    int64  // bytes that were not in the cache
	Cached     int64  // bytes that were
	Provenance []byte // an in-toto statement, with Options.Provenance
	// Layers counts the gzip layers of images by the encoders in the cache; nil with Options.NoCache.
	Layers *encoders.Coverage
}

// Build downloads everything that the manifest names and writes the bundle to o.Output or o.Stream.
//
// It uses the lock beside the manifest if that fits, and otherwise resolves tags and versions anew. Free space is
// checked before anything large is downloaded. Damaged copies in the cache are downloaded again. One item that cannot
// be downloaded does not keep the others from the cache; the error is a *fetch.Errors with all that failed. After an
// error there is no new bundle, and an interrupted build continues where it was, except with o.NoCache. The same lock
// and level give the same bytes.
func (p *Project) Build(ctx context.Context, o Options) (r Result, err error) {
	b := &builder{session: newSession(p, o), started: time.Now()}
	if err := b.open(); err != nil {
		return r, err
	}
	r, err = b.run(ctx)
	return r, errors.Join(err, b.close())
}

// Resolve makes a lock of the manifest and of the images found in its charts and YAML. It does not write the lock to
// a file. If the lock beside the manifest does not fit any more, its pins of unchanged items stay, except with
// o.Update.
func (p *Project) Resolve(ctx context.Context, o Options) (l *manifest.Lock, err error) {
	s := newSession(p, o)
	if err := s.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.cache.Close()) }()
	s.memory = memoryDir(s.Cache)
	s.keepStale()
	var f *finder
	l, err = cache.Mend(s.cache, s.dropped, func() (l *manifest.Lock, err error) {
		f, l, err = s.resolve(ctx)
		return l, err
	})
	if err == nil {
		err = s.judge(l.Undecided)
	}
	if err == nil {
		err = s.checkLock(l, f)
	}
	return l, err
}

// keepStale keeps the lock beside the manifest if it can be read and does not fit.
func (s *session) keepStale() {
	l, err := s.Lock()
	if err != nil || l == nil || s.Update {
		return // an unreadable lock is replaced
	}
	stale := l.Covers(s.Manifest)
	if stale == nil {
		stale, err = s.checkInputs(l)
	}
	if stale != nil && err == nil {
		s.keep = l
	}
}

// A builder makes one bundle.
type builder struct {
	*session
	scratch   *cache.Scratch // the directory of cache, without a cache of the user
	lock      *manifest.Lock // nil until it is known
	finder    *finder        // nil if no images were searched for
	yaml      matched        // with the groups of documents
	started   time.Time
	wasLocked bool         // lock was read from a file
	failures  failures     // items that could not be resolved or fetched
	began     bool         // to download contents
	written   agefile.Keys // open the bundle that was written, if it is encrypted
}

// open opens the cache.
func (b *builder) open() error {
	if b.Output == "" && b.Stream == nil {
		return errors.New("build: Options have neither Output nor Stream")
	}
	if b.NoCache {
		return b.openScratch()
	}
	if err := cache.SweepScratch(filepath.Dir(b.Output)); err != nil {
		return err
	}
	b.memory = memoryDir(b.Cache)
	return b.session.open()
}

func (b *builder) close() error {
	if b.scratch != nil {
		return b.scratch.Close()
	}
	return b.cache.Close()
}

func (b *builder) run(ctx context.Context) (Result, error) {
	if b.NoCache {
		r, err := b.build(ctx)
		if err != nil {
			return r, &NoCacheError{err, b.began}
		}
		return r, nil
	}
	return cache.Mend(b.cache, b.dropped, func() (Result, error) { return b.build(ctx) })
}

// build fetches the items that the cache lacks and writes the bundle.
func (b *builder) build(ctx context.Context) (_ Result, err error) {
	defer func() { b.placeItems(err) }()
	if b.failures.list != nil { // of the attempt before
		b.failures, b.lock = failures{}, nil
	}
	if b.lock == nil { // not again after a damaged blob: files without a checksum would be fetched anew
		if err := b.settle(ctx); err != nil {
			return Result{}, err
		}
	}
	if err := b.failures.err(); err != nil && len(b.lock.Items) == 0 {
		return Result{}, err
	}
	m := b.begin(PhaseFetch)
	defer m.end()
	job, err := fetch.Prepare(ctx, b.lock, b.fetchOptions(m))
	if err != nil {
		return Result{}, err
	}
	defer job.Close()
	b.failures.announce(b.session, job.Failed())
	if err := b.announce(job); err != nil {
		return Result{}, err
	}
	b.began = true
	index, err := b.fetch(ctx, job)
	if err != nil {
		return Result{}, err
	}
	sum, err := b.assemble(ctx, job, index, m)
	if err == nil {
		err = b.checkWritten(ctx)
	}
	estimate := job.Estimate()
	r := Result{Summary: sum, Index: index, Lock: b.lock, Fetched: estimate.Download, Cached: estimate.Cached}
	if err == nil && b.Provenance {
		r.Provenance, err = b.provenance(ctx, sum)
	}
	if err == nil && !b.NoCache {
		if c, err := b.coverage(ctx, index); err == nil { // the bundle is whole without it
			r.Layers = &c
		}
	}
	return r, err
}

// settle sets the lock and checks it, unless items failed, which may be why something is missing.
func (b *builder) settle(ctx context.Context) error {
	lock, err := b.lockFor(ctx)
	if err := b.failures.set(err); err != nil {
		return err
	}
	if b.failures.list == nil {
		if len(lock.Items) == 0 && len(lock.Inputs) == 0 {
			return noContent(b.File)
		}
		if _, err := lock.Marshal(); err != nil { // one that is too large, before anything is downloaded
			return &InputError{err}
		}
		if err := b.judge(lock.Undecided); err != nil {
			return err
		}
		if err := b.checkLock(lock, b.finder); err != nil {
			return err
		}
	}
	b.lock = lock
	return nil
}

// assemble writes the bundle while the contents that the cache lacks are downloaded. The phase fetching ends with the
// last download, except without a cache.
func (b *builder) assemble(ctx context.Context, job *fetch.Job, index bundle.Index,
	fetching *phase,
) (bundle.Summary, error) {
	if b.NoCache {
		return b.assembleUncached(ctx, job, index)
	}
	downloads, stop := context.WithCancel(ctx)
	defer stop()
	arrivals := job.Start(downloads)
	if b.Stream != nil { // bytes in a stream cannot be taken back, so all downloads end before the first one
		if err := arrivals.End(); err != nil {
			return bundle.Summary{}, err
		}
	}
	var writing *phase // once everything has arrived
	progress := func(done, total int64) {
		if writing == nil && arrivals.Ended() {
			fetching.end()
			writing = b.begin(PhaseWrite)
		}
		if writing != nil {
			writing.set(done, total)
		}
	}
	defer func() {
		if writing != nil {
			writing.end()
		}
	}()
	sum, err := b.writeArriving(ctx, job.Later(), arrivals, index, progress)
	if _, failed := errors.AsType[*fetch.Errors](err); err != nil && !failed && ctx.Err() == nil {
		stop()
		_ = arrivals.End() // the cause is err
		return sum, err
	}
	if err := arrivals.End(); err != nil {
		return sum, err // with every item that failed
	}
	if err == nil {
		progress(sum.Size, sum.Size)
	}
	return sum, err
}

// writeArriving writes the bundle of the cache's blobs and of those that arrive in it.
func (b *builder) writeArriving(
	ctx context.Context, later []ocispec.Descriptor, arrivals *fetch.Arrivals, index bundle.Index,
	progress func(done, total int64),
) (bundle.Summary, error) {
	src, err := bundle.NewIncoming(b.cache, bundle.IncomingOptions{
		Blobs: later, Fetch: arrivals.Wait, Jobs: 1,
		Window: math.MaxInt64,
	})
	if err != nil {
		return bundle.Summary{}, err
	}
	return b.write(ctx, src, index, bundle.WriteOptions{Progress: progress})
}

// write writes the bundle to the output.
func (b *builder) write(ctx context.Context, src bundle.Source, x bundle.Index,
	o bundle.WriteOptions,
) (bundle.Summary, error) {
	o.Recipients, b.written = agefile.Remember(b.Recipients)
	if b.Stream != nil {
		return b.stream(ctx, src, x, o)
	}
	o.PartSize = b.PartSize
	return bundle.Create(ctx, b.Output, src, x, o)
}

// stream writes the bundle to the stream. Written bytes cannot be taken back, so a damaged copy in the cache is
// dropped, for the next run to fetch, and is an error.
func (b *builder) stream(ctx context.Context, src bundle.Source, x bundle.Index,
	o bundle.WriteOptions,
) (bundle.Summary, error) {
	sum, err := bundle.Write(ctx, b.Stream, src, x, o)
	damaged := cache.EntryErrors(err)
	if len(damaged) == 0 {
		return sum, err
	}
	for _, d := range damaged {
		if err := b.cache.DropDamaged(d); err != nil {
			return sum, err
		}
	}
	return sum, fmt.Errorf("output cut short: the cache's copy of blob %s is damaged (%s); run the command again to download that blob", damaged[0].Digest, damaged[0].Reason)
}

// lockFor returns the lock beside the manifest if it fits, and otherwise a new one, unless Options.Locked is set.
func (b *builder) lockFor(ctx context.Context) (*manifest.Lock, error) {
	l, err := b.Project.Lock()
	if err != nil {
		return nil, err
	}
	file := LockFile(b.File)
	if l == nil {
		if b.Locked {
			return nil, noLock(b.File)
		}
		return b.resolve(ctx)
	}
	stale := l.Covers(b.Manifest)
	if stale == nil {
		stale, err = b.checkInputs(l)
	}
	if stale == nil || err != nil {
		b.wasLocked = err == nil
		if err == nil && b.otherCatalog(l) {
			b.note("%s was made with the catalog of another kkbundle; its items still agree; run `kkbundle lock %s` to record this catalog", file, b.File)
		}
		return l, err
	}
	if b.Locked {
		return nil, fmt.Errorf("%s: %w", file, stale)
	}
	if b.Update {
		b.note("%s is not used: %v; run `kkbundle lock %s`", file, stale, b.File)
	} else {
		b.note("%s is used for unchanged items only: %v; run `kkbundle lock %s`", file, stale, b.File)
		b.keep = l
	}
	return b.resolve(ctx)
}

// noLock is the error of --locked without a lock.
func noLock(file string) error {
	return &InputError{fmt.Errorf("lock file %s does not exist: run `kkbundle lock %s`", LockFile(file), file)}
}

// resolve makes a new lock.
func (b *builder) resolve(ctx context.Context) (l *manifest.Lock, err error) {
	b.finder, l, err = b.session.resolve(ctx)
	return l, err
}

// fetch downloads everything that the bundle's index needs and returns the index. Items that fail do not keep the
// others from being fetched into the cache; the error has all of them.
func (b *builder) fetch(ctx context.Context, job *fetch.Job) (bundle.Index, error) {
	items, err := job.Head(ctx)
	err = b.failures.set(err)
	if err == nil && len(b.failures.list) > 0 && !b.NoCache {
		err = b.failures.set(job.Start(ctx).End())
	}
	if err := cmp.Or(err, b.failures.err()); err != nil {
		return bundle.Index{}, err
	}
	x := bundle.Index{
		Name: b.Manifest.Metadata.Name, Version: b.Manifest.Metadata.Version,
		Platforms: b.Manifest.Platforms,
	}
	if err := b.groupTable().Put(&x); err != nil {
		return x, err
	}
	of := itemGroups(b.lock)
	for _, it := range items {
		x.Items = append(x.Items, groups.Mark(bundle.Item(it), of[[2]string{it.Kind, it.Ref}]))
	}
	data, err := b.lock.Marshal()
	if err != nil {
		return x, err
	}
	extras, err := b.documents(b.lock)
	if err != nil {
		return x, err
	}
	if b.yaml, err = b.allYAML(); err != nil {
		return x, err
	}
	for _, d := range slices.Concat(extras, []bundle.Document{{
		Kind: bundle.KindLock, Ref: bundle.DocumentLock,
		Data: data,
	}}) {
		if err := b.include(ctx, &x, d); err != nil {
			return x, err
		}
	}
	for _, proof := range []func(context.Context, bundle.Index) (bundle.Document, error){b.closure, b.billOfMaterials} {
		d, err := proof(ctx, x)
		if err == nil {
			err = b.include(ctx, &x, d)
		}
		if err != nil {
			return x, err
		}
	}
	return x, nil
}

// include adds a document to the bundle.
func (b *builder) include(ctx context.Context, x *bundle.Index, d bundle.Document) error {
	it, err := d.Put(ctx, b.cache)
	if err != nil {
		return err
	}
	x.Items = append(x.Items, groups.Mark(it, b.yaml.documentGroups(d)))
	return nil
}
