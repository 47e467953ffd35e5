package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/plain"
)

// minSplit is the least size of parts, in bytes: below, opening a bundle would need more than its first and last part.
const minSplit = 1 << 20

// checkOutput refuses where no bundle can be written, before anything is fetched for it.
func (o *buildOptions) checkOutput(g *globals) error {
	parts := o.split.bytes > 0
	switch {
	case o.output == standardStream && parts:
		return &usageError{errors.New("--split writes files and -o - one stream: leave out one of them")}
	case o.output == standardStream && isTerminal(g.Out):
		return &usageError{errors.New("a bundle is not written to a terminal: name a file with -o, or give the command a pipe")}
	case o.output == standardStream:
		return nil
	}
	file := o.output
	if parts {
		file = bundle.PartName(o.output, 1)
	}
	if err := checkOutput(file); err != nil {
		return err
	}
	if err := bundle.CheckTarget(o.output, parts); err != nil {
		return fmt.Errorf("cannot write %s: %w", o.output, err)
	}
	return nil
}

// write writes the bundle to where the command line says.
func (b *builder) write(ctx context.Context, src bundle.Source, x bundle.Index, o bundle.WriteOptions) (bundle.Summary, error) {
	if b.output == standardStream {
		return b.stream(ctx, src, x, o)
	}
	o.PartSize = b.split.bytes
	return bundle.Create(ctx, b.output, src, x, o)
}

// stream writes the bundle to standard output. What was written cannot be taken back, so where a damaged copy in the cache
// shows in the middle, it is dropped and the next run fetches it.
func (b *builder) stream(ctx context.Context, src bundle.Source, x bundle.Index, o bundle.WriteOptions) (bundle.Summary, error) {
	sum, err := bundle.Write(ctx, b.Out, src, x, o)
	damaged := damagedEntries(err)
	if len(damaged) == 0 {
		return sum, err
	}
	for _, d := range damaged {
		if err := b.cache.DropDamaged(d); err != nil {
			return sum, err
		}
	}
	return sum, fmt.Errorf("what was written is cut short, because the cache's copy of blob %s is damaged (%s); run it again to fetch that anew", damaged[0].Digest, damaged[0].Reason)
}

// name is what the bundle is called for people.
func (r buildResult) name() string {
	switch {
	case r.Path == standardStream:
		return "the bundle"
	case r.Parts > 0:
		return fmt.Sprintf("%s in %s", r.Path, plain.Count(r.Parts, "part"))
	}
	return r.Path
}
