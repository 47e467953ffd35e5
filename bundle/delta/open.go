package delta

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// Open opens the bundle that a chain of deltas makes of o.Old, without writing it. The first delta was made against
// o.Old, and each following one against the result of the one before. A pack in the first place needs no o.Old. A
// wrong base and a damaged delta are errors before anything is made.
//
// Blobs that OLD has are read from OLD, and checked where they are read, as in any bundle. The others are made in
// temporary space, and their digests are checked. The result has the identity of NEW, but not its bytes if OLD is
// compressed differently.
//
// Close of the Reader frees the space and closes OLD. After an error OLD stays open.
func Open(ctx context.Context, o Options, paths ...string) (_ *bundle.Reader, err error) {
	var files []*file
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.close())
		}
	}()
	for _, path := range paths {
		f, err := openFile(path)
		if err != nil {
			return nil, err
		}
		f.name = path
		files = append(files, f)
	}
	return openChain(ctx, o, files, true)
}

// A Source is a delta in any place.
type Source struct {
	io.ReaderAt
	Name string // in errors
	Size int64
}

// OpenSources is Open for deltas in any place. They are not read after it returns. Close of the Reader leaves OLD open.
func OpenSources(ctx context.Context, o Options, sources ...Source) (*bundle.Reader, error) {
	var files []*file
	for _, s := range sources {
		f, err := parse(s, s.Size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		f.name = s.Name
		files = append(files, f)
	}
	return openChain(ctx, o, files, false)
}

// openChain opens the bundle that deltas make of o.Old. Close of the Reader closes o.Old too if it is owned.
func openChain(ctx context.Context, o Options, files []*file, owned bool) (_ *bundle.Reader, err error) {
	if err := checkChain(o.Old, files); err != nil {
		return nil, err
	}
	need := int64(0)
	for _, f := range files {
		if err := f.verify(); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		need += f.Scratch()
	}
	_, err = disk.CheckSpace(disk.Need{
		Dir: o.dir(), What: "unpacked files and new blobs", Bytes: need, Remedy: "set TMPDIR to another directory",
	})
	if err != nil {
		return nil, err
	}
	step, first := o, (*space)(nil)
	for _, f := range files {
		s, err := f.open(ctx, step)
		if err != nil {
			if first != nil {
				err = errors.Join(err, step.Old.Close())
			}
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if first == nil {
			first = s
		} else {
			s.also = append(s.also, step.Old)
		}
		step.Old = &bundle.From{Name: f.name, Reader: s.result}
	}
	if o.Old != nil && owned {
		first.also = append(first.also, o.Old)
	}
	return step.Old.Reader, nil
}

// checkChain compares the identities of deltas.
func checkChain(old *bundle.From, files []*file) error {
	if len(files) == 0 {
		return errors.New("no delta given")
	}
	for i, f := range files {
		var err error
		if i == 0 {
			err = f.checkOld(old)
		} else if before := files[i-1]; f.Old != before.New {
			err = fmt.Errorf("the delta was made against bundle %q, but %s makes bundle %s: name the deltas in their order", f.Old, before.name, before.New)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// space is the temporary space of an opened result.
type space struct {
	*spool
	made   *applier
	also   []io.Closer // bundles that the result reads
	result *bundle.Reader
}

// Close frees the space.
func (s *space) Close() error {
	err := errors.Join(s.spool.Close(), s.made.Close())
	for _, c := range s.also {
		err = errors.Join(err, c.Close())
	}
	return err
}

// open makes the new blobs and opens NEW. Frames of OLD are used as they are, whatever compressed them.
func (f *file) open(ctx context.Context, o Options) (_ *space, err error) {
	level := format.LevelOf(f.Encoder, f.FrameSize)
	if o.Old != nil {
		level = o.Old.Level()
	}
	a, err := f.rebuild(ctx, o, level)
	if err != nil {
		return nil, err
	}
	s := &space{made: a}
	if s.spool, err = newSpool(o.dir()); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	src := bundle.Source(a.scratch)
	if o.Old != nil {
		src, err = bundle.Combine(a.scratch.Cache, *o.Old)
	}
	if err == nil {
		s.result, err = bundle.Compose(ctx, src, a.index, s)
	}
	if err == nil && s.result.Digest() != f.New {
		err = damaged("it makes another bundle than its head says")
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
