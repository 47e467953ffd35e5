package transfer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"filippo.io/age"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// CopyOptions are the selection, the target and the progress of Copy.
type CopyOptions struct {
	Selection
	// Addition, if not nil, is a further source. Its manifest, lock and other documents are left out.
	Addition *bundle.From
	Output   string
	// Check, if it is not nil, is called with the index of the new bundle before the bundle is written. After its
	// error there is none.
	Check func(x bundle.Index) error
	// Recipients, if any, encrypt the output: see bundle.WriteOptions.
	Recipients []age.Recipient
	Progress   func(phase string, done, total int64) // phase is compress or copy; may be nil
}

// A CopyResult describes the bundle that Copy wrote.
type CopyResult struct {
	bundle.Summary
	Index        bundle.Index
	Recompressed int64           // bytes of contents whose frames did not fit
	From         []digest.Digest // identities of the sources, sorted
	LeftOut      []string        // items that could not come along, with the reason
}

// Copy writes a bundle of others to o.Output. Contents are copied without compressing them again if all sources have
// frames of one size. Every blob's digest is checked. After an error there is no new bundle. Everything of one source
// gives the same bytes.
func Copy(ctx context.Context, from []bundle.From, o CopyOptions) (r CopyResult, err error) {
	if o.Addition != nil {
		from = append(slices.Clone(from), *o.Addition)
	}
	sources := make([]Source, len(from))
	for i, f := range from {
		sources[i] = Source{Name: f.Name, Catalog: &f.Catalog}
	}
	if o.Addition != nil {
		sources[len(from)-1].addition = true
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	s := &selector{Selection: o.Selection, from: sources}
	x, err := s.plan(ctx)
	if err != nil {
		return r, err
	}
	c := &copier{selector: s, CopyOptions: o, readers: from}
	defer func() {
		if c.scratch != nil {
			err = errors.Join(err, c.scratch())
		}
	}()
	return c.write(ctx, x)
}

// A copier makes one bundle out of others.
type copier struct {
	*selector
	CopyOptions
	readers []bundle.From // in the order of from
	scratch func() error  // removes the scratch directory, nil if there is none
}

// write writes the bundle.
func (c *copier) write(ctx context.Context, x bundle.Index) (CopyResult, error) {
	scratch, err := c.openScratch()
	if err != nil {
		return CopyResult{}, err
	}
	for _, d := range c.locks {
		it, err := d.Put(ctx, scratch)
		if err != nil {
			return CopyResult{}, err
		}
		x.Items = append(x.Items, it)
	}
	if c.Check != nil {
		if err := c.Check(x); err != nil {
			return CopyResult{}, err
		}
	}
	src, err := bundle.Combine(scratch, c.readers...)
	if err != nil {
		return CopyResult{}, err
	}
	again, err := src.Recompress(ctx, x.Items, c.phase("compress"))
	if err != nil {
		return CopyResult{}, err
	}
	most, err := bundle.Estimate(ctx, src, x)
	if err != nil {
		return CopyResult{}, err
	}
	if len(c.Recipients) > 0 {
		most = agefile.MaxSize(most)
	}
	place := disk.Need{
		Dir: filepath.Dir(c.Output), What: "the bundle", Bytes: most,
		Remedy: "name another place with -o",
	}
	if _, err := disk.CheckSpace(place); err != nil {
		return CopyResult{}, err
	}
	sum, err := bundle.Create(ctx, c.Output, src, x, bundle.WriteOptions{
		Recipients: c.Recipients,
		Progress:   c.phase("copy"),
	})
	r := CopyResult{Summary: sum, Index: x, Recompressed: again, LeftOut: append([]string{}, c.leftOut...)}
	for _, id := range c.identities() {
		r.From = append(r.From, digest.Digest(id))
	}
	return r, err
}

// openScratch opens a cache beside the result for contents that are compressed or written anew: nil if there are none.
func (c *copier) openScratch() (*cache.Cache, error) {
	mixed := slices.ContainsFunc(c.readers,
		func(f bundle.From) bool { return f.FrameSize() != c.readers[0].FrameSize() })
	if !mixed && len(c.locks) == 0 {
		return nil, nil //nolint:nilnil // most copies need none
	}
	if len(c.Recipients) > 0 { // nothing in clear beside an encrypted bundle, which may be on a medium to carry
		s, err := cache.OpenScratch(os.TempDir(), c.readers[0].Level())
		if err != nil {
			return nil, err
		}
		c.scratch = s.Close
		return s.Cache, nil
	}
	// The same name each time: the next run removes the directory of a killed one.
	dir := filepath.Join(filepath.Dir(c.Output), "."+filepath.Base(c.Output)+".scratch")
	c.scratch = func() error { return os.RemoveAll(dir) }
	return cache.Open(dir, c.readers[0].Level())
}

func (c *copier) phase(name string) func(done, total int64) {
	return func(done, total int64) { c.Progress(name, done, total) }
}
