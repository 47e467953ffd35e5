package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

type buildOptions struct {
	fetchFlags
	output string
	locked bool
}

func newBuildCmd(g *globals) *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build MANIFEST",
		Short: "Download everything a manifest names into one file",
		Long: `Downloads everything a manifest names into one file, NAME-VERSION.kkb.

A lock file beside the manifest is used while it fits; without one, what tags mean today is looked up and the lock is kept
in the bundle. What was downloaded stays in the cache, so an interrupted build continues and the next one brings only
what is new. The same lock gives the same bytes.`,
		Example: `  kkbundle build manifest.yaml
  kkbundle build --locked -o /media/disk/site.kkb manifest.yaml`,
		Args: exactArgs("MANIFEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBuild(cmd.Context(), g, args[0], o)
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "the file to write (default NAME-VERSION.kkb)")
	cmd.Flags().BoolVar(&o.locked, "locked", false, "refuse to build unless the lock file fits the manifest")
	return cmd
}

type buildResult struct {
	Version  int           `json:"version"`
	Path     string        `json:"path"`
	Digest   string        `json:"digest"`
	Size     int64         `json:"size"`
	Items    int           `json:"items"`
	Blobs    int           `json:"blobs"`
	Content  int64         `json:"content"`
	Fetched  int64         `json:"fetched"`
	Cached   int64         `json:"cached"`
	Duration time.Duration `json:"duration"`
}

func runBuild(ctx context.Context, g *globals, file string, o buildOptions) error {
	start := time.Now()
	p, err := loadProject(file)
	if err != nil {
		return err
	}
	output := o.output
	if output == "" {
		output = bundleFile(p.manifest.Metadata)
	}
	c, cacheDir, err := o.openCache()
	if err != nil {
		return err
	}
	l, err := lockFor(ctx, g, p, c, o)
	if err != nil {
		return err
	}
	b := &builder{globals: g, project: p, cache: c, lock: l, jobs: o.jobs}
	estimate, err := b.estimate(ctx, cacheDir, output)
	if err != nil {
		return err
	}
	index, err := b.fetch(ctx)
	if err != nil {
		return err
	}
	sum, err := b.assemble(ctx, output, index)
	if err != nil {
		return err
	}
	r := buildResult{
		Version: 1, Path: output, Digest: sum.Digest.String(), Size: sum.Size, Items: len(index.Items), Blobs: sum.Blobs,
		Content: sum.Content, Fetched: estimate.Download, Cached: estimate.Cached, Duration: time.Since(start),
	}
	if g.json {
		return printJSON(g.Out, r)
	}
	g.note("%s: %s, %d items (%s unpacked) in %s", r.Path, size(r.Size), r.Items, size(r.Content), r.Duration.Round(100*time.Millisecond))
	_, err = fmt.Fprintln(g.Out, r.Digest)
	return err
}

func bundleFile(m manifest.Metadata) string {
	if m.Version == "" {
		return m.Name + ".kkb"
	}
	return m.Name + "-" + m.Version + ".kkb"
}

// lockFor returns the lock beside the manifest if it fits, and otherwise, unless --locked, a new one.
func lockFor(ctx context.Context, g *globals, p *project, c *bundle.Cache, o buildOptions) (*manifest.Lock, error) {
	l, err := p.loadLock()
	if err != nil {
		return nil, err
	}
	remedy := fmt.Sprintf("run `kkbundle lock %s`", p.file)
	if l == nil {
		if o.locked {
			return nil, fmt.Errorf("%w: %s is not there; %s", errStaleLock, lockFile(p.file), remedy)
		}
		return resolve(ctx, g, p, c, o.jobs)
	}
	stale := l.Covers(p.manifest)
	if stale == nil {
		return l, nil
	}
	if o.locked {
		return nil, fmt.Errorf("%w: %w; %s", errStaleLock, stale, remedy)
	}
	g.note("%s does not fit the manifest and is not used; %s (%v)", lockFile(p.file), remedy, stale)
	return resolve(ctx, g, p, c, o.jobs)
}

// A builder makes one bundle.
type builder struct {
	*globals
	*project
	cache *bundle.Cache
	lock  *manifest.Lock
	jobs  int
}

// estimate says what the build will take, and refuses to begin if a disk cannot hold it.
func (b *builder) estimate(ctx context.Context, cacheDir, output string) (fetch.Estimation, error) {
	m := b.newMeter("estimate")
	e, err := fetch.Estimate(ctx, b.lock, b.fetchOptions(b.project, b.cache, b.jobs, m))
	m.stop()
	if err != nil {
		return e, err
	}
	b.note("%d items: %s to download, %s cached", len(b.lock.Items), size(e.Download), size(e.Cached))
	return e, checkSpace(
		spaceNeed{cacheDir, "the cache", e.Download},
		spaceNeed{filepath.Dir(output), "the bundle", e.Download + e.Cached},
	)
}

// fetch brings everything into the cache and says what the bundle holds. What failed does not keep the rest from coming;
// the error has all of it.
func (b *builder) fetch(ctx context.Context) (bundle.Index, error) {
	m := b.newMeter("fetch")
	items, err := fetch.All(ctx, b.lock, b.fetchOptions(b.project, b.cache, b.jobs, m))
	m.stop()
	if err != nil {
		return bundle.Index{}, err
	}
	x := bundle.Index{Name: b.manifest.Metadata.Name, Version: b.manifest.Metadata.Version, Platforms: b.manifest.Platforms}
	for _, it := range items {
		x.Items = append(x.Items, bundle.Item(it))
	}
	lock, err := b.lock.Marshal()
	if err != nil {
		return x, err
	}
	for _, d := range append(b.extras, document{bundle.KindLock, documentLock, lock}) {
		it, err := d.put(ctx, b.cache)
		if err != nil {
			return x, err
		}
		x.Items = append(x.Items, it)
	}
	return x, nil
}

// assemble writes the bundle. A cache entry that turns out damaged is dropped and fetched again, once.
func (b *builder) assemble(ctx context.Context, output string, x bundle.Index) (bundle.Summary, error) {
	write := func() (bundle.Summary, error) {
		m := b.newMeter("write")
		defer m.stop()
		return bundle.Create(ctx, output, b.cache, x, bundle.WriteOptions{Progress: m.set})
	}
	sum, err := write()
	var damaged *bundle.CacheError
	if !errors.As(err, &damaged) {
		return sum, err
	}
	b.note("%v; fetching it again", damaged)
	if err := b.cache.Drop(damaged.Digest); err != nil {
		return sum, err
	}
	if _, err := b.fetch(ctx); err != nil {
		return sum, err
	}
	return write()
}
