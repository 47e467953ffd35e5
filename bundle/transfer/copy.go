package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/plain"
)

type copyOptions struct {
	output, prefer, name, version string
	items, platforms              []string
}

func newCopyCmd(g *globals) *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "copy BUNDLE... -o BUNDLE",
		Short: "Make a bundle out of others: a part, or several in one",
		Long: `Makes a bundle out of others, without network and without compressing again: a part of one (--item, --platform), several in
one, or both. Every blob's digest is checked on the way; a damaged source leaves nothing behind. Everything of one bundle
gives the same bytes; else the result names the bundles it was made from, and signatures about those do not hold for it.

` + itemsHelp + `
Signatures and other referrers of an image go with it. With --item, what a bundle was built from (manifest/*, lock/*) is
taken if it is named; a lock is reduced to what is there. Where bundles have different content under one name, that is an
error unless --prefer says which counts; an image that each has for other platforms is joined.`,
		Example: `  kkbundle copy site-1.4.0.kkb --platform linux/arm64 -o site-arm64.kkb
  kkbundle copy site-1.4.0.kkb --item nginx:1.29 --item 'chart/*' -o part.kkb
  kkbundle copy base.kkb apps.kkb --name all --version 1 -o all.kkb`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return takes("BUNDLE...")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCopy(cmd.Context(), g, args, o)
		},
	}
	f := cmd.Flags()
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", "", "the file to write (required)")
	f.StringArrayVar(&o.items, "item", nil, "take only this item (may be repeated; * stands for any characters)")
	f.StringSliceVar(&o.platforms, "platform", nil, "take only this platform (may be repeated)")
	f.StringVar(&o.prefer, "prefer", "", "which bundle counts where they differ under one name: first or last")
	f.StringVar(&o.name, "name", "", "name of the result (default that of the sources)")
	f.StringVar(&o.version, "version", "", "version of the result (default that of the sources)")
	return cmd
}

// copyResult is what copy prints with --json.
type copyResult struct {
	Version      int             `json:"version"` // 1
	Path         string          `json:"path"`
	Digest       digest.Digest   `json:"digest"`
	Size         int64           `json:"size"` // bytes, as are the others
	Items        int             `json:"items"`
	Blobs        int             `json:"blobs"`
	Content      int64           `json:"content"`      // what it unpacks to
	Recompressed int64           `json:"recompressed"` // content whose frames did not fit
	From         []digest.Digest `json:"from"`         // the identities of the sources
	LeftOut      []string        `json:"leftOut"`      // what could not come along, and why
	Duration     time.Duration   `json:"duration"`     // nanoseconds
	index        bundle.Index
}

func runCopy(ctx context.Context, g *globals, paths []string, o copyOptions) (err error) {
	start := time.Now()
	platforms, err := o.check()
	if err != nil {
		return err
	}
	c := &copier{selector: selector{globals: g, copyOptions: o, wanted: platforms}}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, path := range paths {
		r, err := c.openBundle(path)
		if err != nil {
			return err
		}
		c.readers = append(c.readers, bundle.From{Name: path, Reader: r})
		c.from = append(c.from, selectedFrom{path, &r.Catalog})
	}
	index, err := c.plan(ctx)
	if err != nil {
		return err
	}
	r, err := c.write(ctx, index)
	if err != nil {
		return err
	}
	c.noteSignatures(r)
	r.Duration = time.Since(start)
	if g.json {
		return printJSON(g.Out, r)
	}
	for _, text := range c.leftOut {
		g.note("left out: %s", plain.Line(text))
	}
	if r.Recompressed > 0 {
		g.note("%s compressed again, because the bundles have frames of different sizes", plain.Size(r.Recompressed))
	}
	g.note("%s: %s, %s (%s unpacked) in %s", r.Path, plain.Size(r.Size), plain.Count(r.Items, "item"), plain.Size(r.Content), r.Duration.Round(100*time.Millisecond))
	return g.result("%s", r.Digest)
}

// check refuses a command line that makes no sense.
func (o *copyOptions) check() (platformSet, error) {
	switch {
	case o.output == "":
		return nil, &usageError{errors.New("name the bundle to write with -o")}
	case o.output == "-":
		return nil, &usageError{errors.New("a bundle is written to a file: name one with -o")}
	case o.prefer != "" && o.prefer != "first" && o.prefer != "last":
		return nil, &usageError{fmt.Errorf("--prefer %s: want first or last", o.prefer)}
	}
	platforms, err := parsePlatforms(o.platforms)
	if err != nil {
		return nil, err
	}
	return platforms, disk.CheckOutput(o.output)
}

// A selectedFrom is what a bundle that is selected from says of itself.
type selectedFrom struct {
	Name string
	*bundle.Catalog
}

// A selector says what a bundle made out of others holds. It reads no contents but those of locks.
type selector struct {
	*globals
	copyOptions
	wanted  platformSet
	from    []selectedFrom
	leftOut []string
	chosen  [][]bundle.Item   // of each source
	locks   []bundle.Document // that have to be written anew
}

// A copier makes one bundle out of others.
type copier struct {
	selector
	readers []bundle.From // in the order of from
	scratch string        // a directory that is removed in the end, "" if there is none
}

func (c *copier) close() error {
	var errs []error
	for _, f := range c.readers {
		errs = append(errs, f.Close())
	}
	if c.scratch != "" {
		errs = append(errs, os.RemoveAll(c.scratch))
	}
	return errors.Join(errs...)
}

// plan says what the result holds.
func (c *selector) plan(ctx context.Context) (bundle.Index, error) {
	if err := c.choose(ctx); err != nil {
		return bundle.Index{}, err
	}
	items, err := c.merge()
	if err != nil {
		return bundle.Index{}, err
	}
	if len(items) == 0 {
		return bundle.Index{}, errors.New("nothing is left to copy")
	}
	x, err := c.head()
	if err != nil {
		return bundle.Index{}, err
	}
	for _, f := range c.from {
		if whole := f.Index(); sameItems(whole.Items, items) && whole.Name == x.Name && whole.Version == x.Version {
			return whole, nil
		}
	}
	x.Items = items
	x.Items = c.documents(ctx, x)
	x.Annotations[bundle.AnnotationFrom] = strings.Join(c.identities(), ",")
	return x, nil
}

func sameItems(a, b []bundle.Item) bool {
	return slices.EqualFunc(a, b, func(a, b bundle.Item) bool {
		return sameKey(a, b) == 0 && a.Descriptor.Digest == b.Descriptor.Digest && slices.Equal(a.Absent, b.Absent)
	})
}

// identities are those of the sources, sorted, each once.
func (c *selector) identities() []string {
	var all []string
	for _, f := range c.from {
		all = append(all, f.Digest().String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// head returns the index without its items: what all sources say alike is said of the result.
func (c *selector) head() (bundle.Index, error) {
	x := bundle.Index{Name: c.name, Version: c.version, Annotations: map[string]string{}}
	first := c.from[0].Index()
	same := func(of func(bundle.Index) string) bool {
		return !slices.ContainsFunc(c.from, func(f selectedFrom) bool { return of(f.Index()) != of(first) })
	}
	if x.Name == "" {
		if !same(func(x bundle.Index) string { return x.Name }) {
			return x, &usageError{errors.New("the bundles have different names: say what the result is called with --name, and --version")}
		}
		x.Name = first.Name
	}
	if x.Version == "" && same(func(x bundle.Index) string { return x.Version }) {
		x.Version = first.Version
	}
	for k, v := range first.Annotations {
		if k != bundle.AnnotationFrom && same(func(x bundle.Index) string { return x.Annotations[k] }) {
			x.Annotations[k] = v
		}
	}
	for _, f := range c.from {
		for _, p := range f.Index().Platforms {
			if c.wanted.has(p) {
				x.Platforms = append(x.Platforms, p)
			}
		}
	}
	slices.Sort(x.Platforms)
	x.Platforms = slices.Compact(x.Platforms)
	return x, nil
}

// choose fills in what is taken of each source.
func (c *selector) choose(ctx context.Context) error {
	hits, kept := make([]int, len(c.items)), make([]int, len(c.items))
	var all []bundle.Item
	for _, f := range c.from {
		items := f.Index().Items
		all = append(all, items...)
		var chosen []bundle.Item
		if len(c.items) == 0 {
			for _, it := range items {
				if it.Kind == bundle.KindReferrer && len(c.wanted) > 0 {
					continue // comes with what it is about
				}
				if _, err := c.take(ctx, f, it, &chosen); err != nil {
					return err
				}
			}
		}
		for i, pattern := range c.items {
			for _, it := range matching(items, pattern) {
				hits[i]++
				ok, err := c.take(ctx, f, it, &chosen)
				if err != nil {
					return err
				}
				if ok {
					kept[i]++
				}
			}
		}
		referrers, err := f.Referrers(ctx, chosen)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		chosen = append(chosen, referrers...)
		slices.SortFunc(chosen, byIndex)
		chosen = slices.CompactFunc(chosen, func(a, b bundle.Item) bool { return byIndex(a, b) == 0 })
		c.chosen = append(c.chosen, chosen)
	}
	var errs []error
	for i, pattern := range c.items {
		switch {
		case hits[i] == 0:
			errs = append(errs, &noItemError{pattern: pattern, near: near(all, pattern)})
		case kept[i] == 0:
			errs = append(errs, fmt.Errorf("%s is not there for %s", pattern, c.wanted))
		}
	}
	return errors.Join(errs...)
}

// take adds an item, or as much of it as is for the platforms.
func (c *selector) take(ctx context.Context, f selectedFrom, it bundle.Item, chosen *[]bundle.Item) (bool, error) {
	if len(c.wanted) == 0 {
		*chosen = append(*chosen, it)
		return true, nil
	}
	narrow, left, err := f.Narrow(ctx, it, c.wanted.has)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.Name, err)
	}
	switch {
	case left:
		*chosen = append(*chosen, narrow)
	case it.Kind == bundle.KindImage && len(c.items) == 0:
		c.leftOut = append(c.leftOut, fmt.Sprintf("%s of %s: it is not there for %s", it, f.Name, c.wanted))
	}
	return left, nil
}

// sameKey compares what a user knows items by.
func sameKey(a, b bundle.Item) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref),
		cmp.Compare(bundle.PlatformString(a.Descriptor.Platform), bundle.PlatformString(b.Descriptor.Platform)),
	)
}

// byIndex is the order of index.json.
func byIndex(a, b bundle.Item) int {
	return cmp.Or(sameKey(a, b), cmp.Compare(a.Descriptor.Digest, b.Descriptor.Digest))
}

// write makes the bundle.
func (c *copier) write(ctx context.Context, x bundle.Index) (copyResult, error) {
	scratch, err := c.openScratch()
	if err != nil {
		return copyResult{}, err
	}
	for _, d := range c.locks {
		it, err := d.Put(ctx, scratch)
		if err != nil {
			return copyResult{}, err
		}
		x.Items = append(x.Items, it)
	}
	src, err := bundle.Combine(scratch, c.readers...)
	if err != nil {
		return copyResult{}, err
	}
	m := c.newMeter("compress")
	again, err := src.Recompress(ctx, x.Items, m.set)
	m.stop()
	if err != nil {
		return copyResult{}, err
	}
	most, err := bundle.Estimate(ctx, src, x)
	if err != nil {
		return copyResult{}, err
	}
	place := disk.Need{Dir: filepath.Dir(c.output), What: "the bundle", Bytes: most, Remedy: "name another place with -o"}
	if _, err := disk.CheckSpace(place); err != nil {
		return copyResult{}, err
	}
	m = c.newMeter("copy")
	defer m.stop()
	sum, err := bundle.Create(ctx, c.output, src, x, bundle.WriteOptions{Progress: m.set})
	r := copyResult{
		Version: 1, Path: c.output, Digest: sum.Digest, Size: sum.Size, Items: len(x.Items), Blobs: sum.Blobs, Content: sum.Content,
		Recompressed: again, LeftOut: append([]string{}, c.leftOut...), index: x,
	}
	for _, id := range c.identities() {
		r.From = append(r.From, digest.Digest(id))
	}
	return r, err
}

// openScratch makes a place beside the result for what has to be made anew: nil if there is nothing.
func (c *copier) openScratch() (*bundle.Cache, error) {
	mixed := slices.ContainsFunc(c.readers, func(f bundle.From) bool { return f.FrameSize() != c.readers[0].FrameSize() })
	if !mixed && len(c.locks) == 0 {
		return nil, nil //nolint:nilnil // most copies need none
	}
	// The same name each time: what a killed run left goes with the next one.
	c.scratch = filepath.Join(filepath.Dir(c.output), "."+filepath.Base(c.output)+".scratch")
	return bundle.OpenCache(c.scratch, c.readers[0].Level())
}
