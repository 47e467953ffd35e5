package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

type buildOptions struct {
	lockOptions
	output  string
	locked  bool
	noCache bool
	// provenance says beside the bundle how it was built.
	provenance bool
	split      sizeFlag
}

func newBuildCmd(g *globals) *cobra.Command {
	o := buildOptions{split: sizeFlag{least: minSplit}}
	cmd := &cobra.Command{
		Use:   "build MANIFEST",
		Short: "Download everything a manifest names into one file",
		Long: `Downloads everything a manifest names into one file, NAME-VERSION.kkb.

A lock file beside the manifest is used while it fits; without one, what tags mean today is looked up and the lock is kept
in the bundle. What was downloaded stays in the cache, so an interrupted build continues and the next one brings only
what is new. The same lock gives the same bytes. What the disks have to hold is checked before anything large is downloaded.

With --no-cache only the bundle and a few blobs need room, in a directory beside it that is removed again ($TMPDIR if that is set):
contents are downloaded in the order of the bundle, a few ahead of the one being written. The bundle is the same, but a build that is
interrupted starts over.

With --split the bundle is written as NAME.kkb.001, .002 and so on, of that size each, at most 999, and NAME.kkb.parts.json,
which says what must be there. Every command reads the parts where they lie. FAT32 takes files below 4 GiB: --split 4GB.
With -o - the bundle goes to standard output, and what is printed there otherwise to standard error.

With --provenance, NAME.kkb.provenance.json says how the bundle was built: an in-toto statement with SLSA provenance, its manifest and lock
by digest, where each item came from, and when. It is no part of the bundle, which has no times; see kkbundle sign --provenance.

What an installation, charts and YAML need has to be in the bundle for every platform. What is missing is an error that says who
needs it; the proof travels in the bundle (kkbundle inspect --closure), with a bill of materials (inspect --sbom).

Images that nobody listed are found by rendering the charts with their values, and in the Kubernetes YAML under manifests.
What may be an image and cannot be decided is said; --strict makes that an error. See kkbundle images.`,
		Example: `  kkbundle build manifest.yaml
  kkbundle build --locked -o /media/disk/site.kkb manifest.yaml
  kkbundle build --split 4GB -o /media/stick/site.kkb manifest.yaml
  kkbundle build -o - manifest.yaml | ssh gate kkbundle push --registry harbor.site -`,
		Args: takes("MANIFEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBuild(cmd.Context(), g, args[0], o)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "the file to write, - for standard output (default NAME-VERSION.kkb)")
	cmd.Flags().Var(&o.split, "split", "write parts of this size, such as 4GB, 4GiB or 700MB")
	o.fetchFlags.add(cmd.Flags())
	o.findFlags.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.locked, "locked", false, "refuse to build unless the lock file fits the manifest")
	cmd.Flags().BoolVar(&o.provenance, "provenance", false, "write NAME.kkb.provenance.json, which says how the bundle was built")
	cmd.Flags().BoolVar(&o.noCache, "no-cache", false, "download straight into the bundle, for machines with little disk; an interrupted build starts over")
	return cmd
}

// buildResult is what build prints with --json.
type buildResult struct {
	Version  int           `json:"version"` // 1
	Path     string        `json:"path"`
	Digest   string        `json:"digest"`
	Size     int64         `json:"size"`            // bytes, as are the others
	Parts    int           `json:"parts,omitempty"` // files that it is in, with --split
	Items    int           `json:"items"`
	Blobs    int           `json:"blobs"`
	Content  int64         `json:"content"`  // what it unpacks to
	Fetched  int64         `json:"fetched"`  // that were not in the cache
	Cached   int64         `json:"cached"`   // that were
	Duration time.Duration `json:"duration"` // nanoseconds
	Warnings []string      `json:"warnings,omitempty"`
	// Undecided is what may be an image and is none of the items.
	Undecided []string `json:"undecided,omitempty"`
	// Assumed is what the catalog does not know and took for granted.
	Assumed []string `json:"assumed,omitempty"`
}

func runBuild(ctx context.Context, g *globals, file string, o buildOptions) error {
	start := time.Now()
	if o.provenance && o.output == standardStream {
		return &usageError{errors.New("--provenance lies beside a file: name one with -o")}
	}
	p, err := loadProject(file)
	if err != nil {
		return err
	}
	g.noteProblems(p.notes)
	g.assumed(p.assumptions)
	if o.output == "" {
		o.output = bundleFile(p.manifest.Metadata)
	}
	if err := o.checkOutput(g); err != nil {
		return err
	}
	b := &builder{globals: g, project: p, buildOptions: o, started: start}
	if err := b.open(); err != nil {
		return err
	}
	r, err := b.run(ctx)
	if err = errors.Join(err, b.close()); err != nil {
		return err
	}
	r.Duration = time.Since(start)
	switch {
	case g.json && o.output == standardStream:
		return json.NewEncoder(g.Err).Encode(r) // a line, as the events there are
	case g.json:
		return printJSON(g.Out, r)
	case o.output == standardStream:
		g.Out = g.Err // standard output is the bundle's
	}
	g.noteAll(r.Warnings)
	g.note("%s: %s, %s (%s unpacked) in %s", r.name(), size(r.Size), count(r.Items, "item"), size(r.Content), r.Duration.Round(100*time.Millisecond))
	return g.result("%s", r.Digest)
}

func bundleFile(m manifest.Metadata) string {
	if m.Version == "" {
		return m.Name + ".kkb"
	}
	return m.Name + "-" + m.Version + ".kkb"
}

// mending runs f. Where the cache's copies of blobs turn out damaged, they are dropped, and f runs again and fetches them.
func mending[T any](g *globals, c *bundle.Cache, f func() (T, error)) (T, error) {
	dropped := map[digest.Digest]bool{}
	for {
		result, err := f()
		before := len(dropped)
		for _, damaged := range damagedEntries(err) {
			if dropped[damaged.Digest] {
				continue // it was fetched again and is damaged again: that is the disk
			}
			dropped[damaged.Digest] = true
			g.note("the cache's copy of blob %s is damaged (%s) and is fetched again", damaged.Digest, damaged.Reason)
			if err := c.DropDamaged(damaged); err != nil {
				return result, err
			}
		}
		if len(dropped) == before {
			return result, err
		}
	}
}

// damagedEntries returns every CacheError in err: where errors.As finds one, each run would mend one.
func damagedEntries(err error) []*bundle.CacheError {
	if damaged, ok := err.(*bundle.CacheError); ok { //nolint:errorlint // the chain is walked here
		return []*bundle.CacheError{damaged}
	}
	var all []*bundle.CacheError
	switch e := err.(type) { //nolint:errorlint // the chain is walked here
	case interface{ Unwrap() error }:
		all = damagedEntries(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, damagedEntries(inner)...)
		}
	}
	return all
}

// A builder makes one bundle.
type builder struct {
	*globals
	*project
	buildOptions
	cache     *bundle.Cache
	cacheDir  string
	scratch   *bundle.Scratch // what the cache is of, with --no-cache
	lock      *manifest.Lock  // once it is known
	finder    *finder         // what looked for images, if they were looked for
	started   time.Time
	wasLocked bool     // the lock was there before
	failures  failures // items that could not be resolved or fetched
	began     bool     // to download what is large
}

// open opens the cache.
func (b *builder) open() (err error) {
	if b.noCache {
		return b.openScratch()
	}
	if err := bundle.SweepScratch(filepath.Dir(b.output)); err != nil {
		return err
	}
	b.cache, b.cacheDir, err = b.openCache()
	b.memory = memoryDir(b.cacheDir)
	return err
}

func (b *builder) close() error {
	if b.scratch != nil {
		return b.scratch.Close()
	}
	return b.cache.Close()
}

func (b *builder) run(ctx context.Context) (buildResult, error) {
	if b.noCache {
		r, err := b.build(ctx)
		if err != nil {
			return r, &startsOverError{err, b.began}
		}
		return r, nil
	}
	return mending(b.globals, b.cache, func() (buildResult, error) { return b.build(ctx) })
}

// build brings what the cache lacks and writes the bundle.
func (b *builder) build(ctx context.Context) (buildResult, error) {
	if b.failures.list != nil { // of the run before, which was mended
		b.failures, b.lock = failures{}, nil
	}
	if b.lock == nil { // not again where a blob had to be mended: files without a checksum would be fetched anew
		lock, err := b.lockFor(ctx)
		if err := b.failures.set(err); err != nil {
			return buildResult{}, err
		}
		if b.failures.list == nil { // what failed may be the answer
			if err := b.judge(lock.Undecided, b.strict, b.file); err != nil {
				return buildResult{}, err
			}
			if err := b.checkLock(lock, b.finder); err != nil {
				return buildResult{}, err
			}
		}
		b.lock = lock
	}
	m := b.newMeter("fetch")
	defer m.stop()
	job, err := fetch.Prepare(ctx, b.lock, b.fetchOptions(b.project, b.cache, b.jobs, m))
	if err != nil {
		return buildResult{}, err
	}
	defer job.Close()
	b.failures.announce(b.globals, job.Failed())
	if err := b.announce(job); err != nil {
		return buildResult{}, err
	}
	b.began = true
	index, err := b.fetch(ctx, job)
	if err != nil {
		return buildResult{}, err
	}
	sum, err := b.assemble(ctx, job, index, m)
	if err == nil {
		err = b.checkWritten(ctx)
	}
	if err == nil && b.provenance {
		err = b.writeProvenance(ctx, sum)
	}
	estimate := job.Estimate()
	return buildResult{
		Version: 1, Path: b.output, Digest: sum.Digest.String(), Size: sum.Size, Parts: sum.Parts, Items: len(index.Items), Blobs: sum.Blobs,
		Content: sum.Content, Fetched: estimate.Download, Cached: estimate.Cached,
		Warnings: append(warnings(shortfallsOf(index.Items)), append(staleSignatures(b.output, index), staleProvenance(b.output, sum.Digest)...)...), Undecided: b.lock.Undecided, Assumed: b.assumptions,
	}, err
}

// assemble writes the bundle. fetching shows what comes until then, or with --no-cache meanwhile.
func (b *builder) assemble(ctx context.Context, job *fetch.Job, index bundle.Index, fetching *meter) (bundle.Summary, error) {
	if b.noCache {
		return b.assembleUncached(ctx, job, index)
	}
	fetching.stop()
	m := b.newMeter("write")
	defer m.stop()
	return b.write(ctx, b.cache, index, bundle.WriteOptions{Progress: m.set})
}

// lockFor returns the lock beside the manifest if it fits, and otherwise, unless --locked, a new one.
func (b *builder) lockFor(ctx context.Context) (*manifest.Lock, error) {
	l, err := b.loadLock()
	if err != nil {
		return nil, err
	}
	file := lockFile(b.file)
	if l == nil {
		if b.locked {
			return nil, &inputError{fmt.Errorf("there is no lock file %s: run `kkbundle lock %s`", file, b.file)}
		}
		return b.resolve(ctx)
	}
	stale := l.Covers(b.manifest)
	if stale == nil {
		stale, err = b.checkInputs(l)
	}
	if stale == nil || err != nil {
		b.wasLocked = err == nil
		return l, err
	}
	if b.locked {
		return nil, fmt.Errorf("%s: %w", file, stale)
	}
	b.note("%s is not used: %v; run `kkbundle lock %s`", file, stale, b.file)
	return b.resolve(ctx)
}

// resolve makes a new lock.
func (b *builder) resolve(ctx context.Context) (*manifest.Lock, error) {
	b.finder = newFinder(b.globals, b.project, b.cache, b.lockOptions)
	return b.finder.resolve(ctx)
}

// fetch brings everything into the cache, or with --no-cache what has to come first, and says what the bundle holds. What
// failed does not keep the rest from coming; the error has all of it.
func (b *builder) fetch(ctx context.Context, job *fetch.Job) (bundle.Index, error) {
	bring := job.Run
	if b.noCache {
		bring = job.Head
	}
	items, err := bring(ctx)
	if err := cmp.Or(b.failures.set(err), b.failures.err()); err != nil {
		return bundle.Index{}, err
	}
	x := bundle.Index{Name: b.manifest.Metadata.Name, Version: b.manifest.Metadata.Version, Platforms: b.manifest.Platforms}
	for _, it := range items {
		x.Items = append(x.Items, bundle.Item(it))
	}
	data, err := b.lock.Marshal()
	if err != nil {
		return x, err
	}
	extras, err := b.documents(b.lock)
	if err != nil {
		return x, err
	}
	for _, d := range slices.Concat(extras, []document{{bundle.KindLock, documentLock, data}}) {
		if err := b.include(ctx, &x, d); err != nil {
			return x, err
		}
	}
	for _, proof := range []func(context.Context, bundle.Index) (document, error){b.closure, b.billOfMaterials} {
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
func (b *builder) include(ctx context.Context, x *bundle.Index, d document) error {
	it, err := d.put(ctx, b.cache)
	x.Items = append(x.Items, it)
	return err
}
