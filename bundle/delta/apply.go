package delta

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/encoders"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/bundle/regzip"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// Options configure Create and Apply.
type Options struct {
	Old    *bundle.From // nil for a pack
	Listed *Listing     // Create only, in place of Old: its content is elsewhere
	Output string       // the file to write; Open has none
	// Zstd, if not "", is the path of the program zstd, which Create uses for entries without a dictionary. Readers
	// need no program.
	Zstd string
	// Encoders, if not nil, remembers the encoders of layers for the next Create.
	Encoders *encoders.Record
	// Scratch is the directory for temporary files; "" for that of the output.
	Scratch string
	// Progress, if not nil, receives the phase, and the bytes done and in total.
	Progress func(phase string, done, total int64)
}

func (o *Options) progress(phase string, done, total int64) {
	if o.Progress != nil {
		o.Progress(phase, done, total)
	}
}

// A Listing is a bundle of which only the blobs' digests are known. A delta against it carries other blobs as a pack
// does.
type Listing struct {
	Digest digest.Digest // identity
	Blobs  map[digest.Digest]bool
}

// NewListing returns the listing of a published bundle.
func NewListing(p published.Bundle) *Listing {
	l := &Listing{Digest: p.Index.Digest, Blobs: make(map[digest.Digest]bool, len(p.Blobs))}
	for _, b := range p.Blobs {
		l.Blobs[b.Digest] = true
	}
	return l
}

// has reports whether the reader of the delta has a blob.
func (o *Options) has(d digest.Digest) bool {
	if o.Old != nil {
		_, ok := o.Old.Stat(d)
		return ok
	}
	return o.Listed != nil && o.Listed.Blobs[d]
}

// dir returns the directory for temporary files.
func (o *Options) dir() string {
	if o.Scratch != "" {
		return o.Scratch
	}
	return filepath.Dir(o.Output)
}

// A Result describes a bundle that Apply has written.
type Result struct {
	Head
	bundle.Summary
}

// Apply writes the bundle NEW of the delta at path. The delta must have been made against o.Old. NEW gets its name
// once its size and sha256 are those that Create recorded. Temporary files lie in the directory of the output.
func Apply(ctx context.Context, path string, o Options) (Result, error) {
	f, err := openFile(path)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = f.close() }() // only read
	if err := errors.Join(f.verify(), f.checkOld(o.Old)); err != nil {
		return Result{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := disk.CheckOutput(o.Output); err != nil {
		return Result{}, err
	}
	need := f.Store + f.Content + f.Size
	if o.Old != nil && !f.copies(o.Old) {
		need += f.Size
	}
	_, err = disk.CheckSpace(disk.Need{
		Dir: filepath.Dir(o.Output), What: "unpacked files, new blobs and the bundle", Bytes: need,
		Remedy: "name another directory with -o",
	})
	if err != nil {
		return Result{}, err
	}
	r := Result{Head: f.Head}
	r.Summary, err = f.apply(ctx, o, func(src bundle.Source, x bundle.Index) (bundle.Summary, error) {
		sum, err := digestOf(f.SHA256)
		if err != nil {
			return bundle.Summary{}, err
		}
		return bundle.Create(ctx, o.Output, src, x, bundle.WriteOptions{
			Want: sum, Progress: func(done, total int64) { o.progress("write", done, total) },
		})
	})
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func digestOf(sum string) (digest.Digest, error) {
	b, err := hex.DecodeString(sum)
	if err != nil || len(b) != sha256.Size {
		return "", damaged("the checksum in its head is not a sha256")
	}
	return digest.NewDigestFromBytes(digest.SHA256, b), nil
}

// checkOld returns an error unless old is the bundle that the delta was made against.
func (f *file) checkOld(old *bundle.From) error {
	switch {
	case f.Old == "" && old != nil:
		return errors.New("this is a pack, which is not made against a bundle: use kkbundle unpack")
	case f.Old == "":
		return nil
	case old == nil:
		return fmt.Errorf("this is a delta against bundle %s: use kkbundle patch with that bundle", f.Old)
	case old.Digest() != f.Old:
		return fmt.Errorf("the delta was made against bundle %s, but %s is bundle %s: name the right bundle", f.Old,
			old.Name, old.Digest())
	}
	return nil
}

// apply makes the blobs of NEW and calls write with a source of them.
func (f *file) apply(ctx context.Context, o Options, write func(bundle.Source,
	bundle.Index) (bundle.Summary, error),
) (s bundle.Summary, err error) {
	enc, err := format.NewEncoder(format.LevelOf(f.Encoder, f.FrameSize), 1)
	if err != nil {
		return s, err
	}
	if enc.ID != f.Encoder {
		return s, &EncoderError{"the new bundle", f.Encoder, enc.ID}
	}
	a, err := f.rebuild(ctx, o, format.LevelOf(f.Encoder, f.FrameSize))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	src, err := a.source(ctx)
	if err != nil {
		return s, err
	}
	return write(src, a.index)
}

// rebuild writes the blobs of NEW that OLD lacks into a temporary file, compressed at a level. The caller closes the
// result.
func (f *file) rebuild(ctx context.Context, o Options, level bundle.Level) (_ *applier, err error) {
	a := &applier{file: f, o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.scratch, err = cache.OpenScratch(o.dir(), level); err != nil {
		return nil, err
	}
	if a.store, err = newSpool(o.dir()); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{a.readBase, a.make, a.putBlobs} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if a.index, err = bundle.ParseIndex(a.indexJSON); err != nil {
		return nil, err
	}
	if digest.FromBytes(a.indexJSON) != f.New {
		return nil, damaged("it makes another bundle than its head says")
	}
	store := a.store
	a.store = nil
	return a, store.Close()
}

type applier struct {
	*file
	o         Options
	store     *spool // nil when the blobs are made
	scratch   *cache.Scratch
	indexJSON []byte // NEW's
	index     bundle.Index
}

// Close frees the temporary space.
func (a *applier) Close() (err error) {
	if a.store != nil {
		err = a.store.Close()
	}
	if a.scratch != nil {
		err = errors.Join(err, a.scratch.Close())
	}
	return err
}

// copies reports whether frames of OLD can be copied, because the same encoder made them.
func (f *file) copies(old *bundle.From) bool {
	return old.Encoder() == f.Encoder && old.FrameSize() == f.FrameSize
}

// source returns the source of NEW's blobs. Frames of OLD are copied if they are of the same encoder.
func (a *applier) source(ctx context.Context) (bundle.Source, error) {
	old := a.o.Old
	switch {
	case a.lent != nil:
		return a.scratch, a.copyBlobs(ctx, *a.lent, a.o.has)
	case old == nil:
		return a.scratch, nil
	case a.copies(old):
		return bundle.Combine(a.scratch.Cache, *old)
	}
	return a.scratch, a.copyBlobs(ctx, *old, func(digest.Digest) bool { return true }) // those that NEW lacks are few
}

// copyBlobs copies blobs of another bundle into the scratch space.
func (a *applier) copyBlobs(ctx context.Context, from bundle.From, want func(digest.Digest) bool) error {
	for _, b := range from.Blobs() {
		if !want(b.Digest) {
			continue
		}
		rc, err := from.Blob(ctx, b.Digest, 0)
		if err != nil {
			return err
		}
		err = a.put(ctx, b, func(w io.Writer) error {
			_, err := io.Copy(w, rc)
			return err
		})
		if err := errors.Join(err, rc.Close()); err != nil {
			return err
		}
	}
	return nil
}

// put puts a blob into the scratch space and checks its digest.
func (a *applier) put(ctx context.Context, b ocispec.Descriptor, write func(io.Writer) error) (err error) {
	w, _, err := a.scratch.Begin(ctx, b.Digest.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := write(&boundedWriter{w, b.Size}); err != nil {
		return err
	}
	_, err = w.Commit(ctx, b.Size, b.Digest)
	return err
}

// A boundedWriter refuses more bytes than promised.
type boundedWriter struct {
	w    io.Writer
	left int64
}

// Write writes p, or returns an error.
func (b *boundedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, damaged("it makes a blob larger than promised")
	}
	b.left -= int64(len(p))
	return b.w.Write(p)
}

// A wanted range of a blob of OLD.
type wanted struct {
	from span
	to   int64 // address in the store
}

// readBase copies the ranges of OLD into the store.
func (a *applier) readBase(ctx context.Context) error {
	in, free, err := a.unpacked(sectionBase)
	if err != nil {
		return err
	}
	defer free()
	read := make(map[digest.Digest]bool)
	for n := in.number(maxRanges); n > 0 && in.err == nil; n-- {
		d, unzip := in.digest(), in.number(1) == 1
		ranges := a.ranges(in)
		if in.err != nil {
			break
		}
		if read[d] {
			return damaged("it reads blob %s of the old bundle twice", d)
		}
		read[d] = true
		if err := a.copyRanges(ctx, d, unzip, ranges); err != nil {
			return err
		}
		a.o.progress("unpack", a.store.size, a.Base)
	}
	if err := in.end(); err != nil {
		return err
	}
	if a.store.size != a.Base {
		return damaged("it has %d bytes of the old bundle; %d are expected", a.store.size, a.Base)
	}
	return nil
}

// ranges reads the ranges of one blob and gives them places in the store.
func (a *applier) ranges(in *scanner) []wanted {
	var all []wanted
	for pieces := in.number(maxRanges); pieces > 0 && in.err == nil; pieces-- {
		at, n := int64(0), in.number(maxRanges-int64(len(all)))
		if n == 0 {
			in.fail(errors.New("a piece has no range"))
		}
		for ; n > 0 && in.err == nil; n-- {
			at += in.number(maxSize)
			r := span{at, in.number(maxSize)}
			if r.size == 0 {
				in.fail(errors.New("a range is empty"))
			}
			if !(span{a.store.size, r.size}).inside(a.Base) || !r.inside(maxSize) {
				in.fail(errors.New("a range lies outside"))
				return nil
			}
			all = append(all, wanted{r, a.store.size})
			a.store.size += r.size
			at += r.size
		}
	}
	slices.SortFunc(all, func(x, y wanted) int { return int(min(max(x.from.at-y.from.at, -1), 1)) })
	return all
}

// copyRanges reads a blob of OLD once, from its start to its end, so that its digest is checked.
func (a *applier) copyRanges(ctx context.Context, d digest.Digest, unzip bool, ranges []wanted) (err error) {
	if a.o.Old == nil {
		return damaged("a pack has no base")
	}
	rc, err := openBlob(ctx, a.o.Old.Reader, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	src := io.Reader(rc)
	if unzip {
		if src, err = kgzip.NewReader(bufio.NewReaderSize(rc, 64<<10)); err != nil {
			return err
		}
	}
	in, at, buf := bufio.NewReaderSize(src, 128<<10), int64(0), make([]byte, 128<<10)
	for _, r := range ranges {
		if r.from.at < at {
			return damaged("ranges of blob %s overlap", d)
		}
		if _, err := io.CopyN(io.Discard, in, r.from.at-at); err != nil {
			return fmt.Errorf("blob %s of %s: %w", d, a.o.Old.Name, err)
		}
		to := &io.LimitedReader{R: in, N: r.from.size}
		n, err := io.CopyBuffer(onlyWriter{io.NewOffsetWriter(a.store, r.to)}, to, buf)
		if err == nil && n < r.from.size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("blob %s of %s: %w", d, a.o.Old.Name, err)
		}
		at = r.from.at + r.from.size
	}
	_, err = io.Copy(io.Discard, rc) // the rest counts for the digest only
	return err
}

// onlyWriter hides all methods but Write.
type onlyWriter struct{ io.Writer }

// openBlob opens a blob of a bundle, or its index.json.
func openBlob(ctx context.Context, r *bundle.Reader, d digest.Digest) (io.ReadCloser, error) {
	if d != r.Digest() {
		return r.Blob(ctx, d, 0)
	}
	data, err := r.Index().Marshal()
	return io.NopCloser(bytes.NewReader(data)), err
}

// make appends the entries to the store.
func (a *applier) make(ctx context.Context) error {
	in := &scanner{in: bufio.NewReaderSize(a.section(sectionMade), 64<<10)}
	dicts := dictRatio*(a.Store-a.Base) + freeDicts
	for a.store.size < a.Store {
		if err := ctx.Err(); err != nil {
			return err
		}
		used, err := a.entry(in)
		if err != nil {
			return err
		}
		if dicts -= used; dicts < 0 {
			return damaged("its dictionaries are too large together")
		}
		a.o.progress("restore files", a.store.size-a.Base, a.Store-a.Base)
	}
	return in.end()
}

// entry appends an entry to the store. It returns the number of bytes of its dictionary and of its steps, which it may
// read repeatedly.
func (a *applier) entry(in *scanner) (used int64, err error) {
	k, size := kind(in.number(int64(a.lastKind()))), in.number(a.Store-a.store.size)
	dict, err := a.dict(in)
	var found []code
	if k == kindCode {
		found = in.code(size)
	}
	length := in.number(a.Sections[sectionMade])
	if err := errors.Join(err, in.err); err != nil {
		return 0, err
	}
	if size == 0 {
		return 0, damaged("an entry is empty")
	}
	data, before := io.LimitReader(in.in, length), a.store.size
	switch k {
	case kindZstd:
		err = unzstd(a.store, data, dict, size)
	case kindEdits:
		var steps int64
		steps, err = applyEdits(a.store, data, dict, size)
		used += steps
	case kindCode:
		err = unzstdCode(a.store, data, found, size)
	}
	if err != nil {
		return 0, err
	}
	if a.store.size != before+size {
		return 0, damaged("an entry makes %d bytes; %d are expected", a.store.size-before, size)
	}
	_, err = io.Copy(io.Discard, data)
	return used + int64(len(dict)), err
}

// dict reads the dictionary of an entry.
func (a *applier) dict(in *scanner) ([]byte, error) {
	var ranges []span
	size := int64(0)
	for n := in.number(maxRanges); n > 0 && in.err == nil; n-- {
		r := span{in.number(maxSize), in.number(maxDict)}
		size += r.size
		if in.err == nil && (!r.inside(a.store.size) || size > maxDict) {
			return nil, damaged("a dictionary lies outside the store or is too large")
		}
		ranges = append(ranges, r)
	}
	if in.err != nil {
		return nil, in.err
	}
	dict, at := make([]byte, size), int64(0)
	for _, r := range ranges {
		if _, err := a.store.ReadAt(dict[at:at+r.size], r.at); err != nil {
			return nil, err
		}
		at += r.size
	}
	return dict, nil
}

// unzstd decodes an entry of kind 0.
func unzstd(w io.Writer, data io.Reader, dict []byte, size int64) error {
	options := []zstd.DOption{
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(2 * maxWindow),
	}
	if len(dict) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(dictID, dict))
	}
	dec, err := zstd.NewReader(data, options...)
	if err != nil {
		return err
	}
	defer dec.Close()
	n, err := io.Copy(onlyWriter{w}, io.LimitReader(dec, size))
	if err != nil {
		return damagedUnless(err)
	}
	if n < size {
		return damaged("an entry makes %d bytes; %d are expected", n, size)
	}
	if extra, err := dec.Read(make([]byte, 1)); extra > 0 || !errors.Is(err, io.EOF) {
		return damaged("an entry goes on after its end")
	}
	return nil
}

// damagedUnless returns err about the disk as it is, and any other as damage.
func damagedUnless(err error) error {
	var disk *os.PathError
	if errors.As(err, &disk) {
		return err
	}
	return damaged("an entry cannot be decoded (%s)", err)
}

// A made blob, as the section blobs describes it.
type made struct {
	ocispec.Descriptor
	recipe regzip.Recipe // without encoder: the bytes as they are
	spans  []span
}

// putBlobs makes the blobs in the scratch space, several at a time.
func (a *applier) putBlobs(ctx context.Context) error {
	in, free, err := a.unpacked(sectionBlobs)
	if err != nil {
		return err
	}
	defer free()
	left, takes, done := a.Content, a.takes(), newTally(func(n int64) { a.o.progress("rebuild blobs", n, a.Content) })
	group, putting := errgroup.WithContext(ctx)
	group.SetLimit(jobs())
	made := make(map[digest.Digest]bool)
	for n := in.number(maxRanges); n > 0 && in.err == nil && putting.Err() == nil; n-- {
		b := a.blob(in, &takes)
		if left -= b.Size; left < 0 {
			in.fail(errors.New("the blobs are larger than promised"))
		}
		if in.err != nil {
			break
		}
		if made[b.Digest] {
			return damaged("it makes blob %s twice", b.Digest)
		}
		made[b.Digest] = true
		if a.indexJSON == nil { // the first one is index.json
			var index bytes.Buffer
			if b.Size > format.MaxIndexSize {
				return damaged("its index.json has %d bytes", b.Size)
			}
			if err := a.write(&boundedWriter{&index, b.Size}, b); err != nil {
				return err
			}
			a.indexJSON = index.Bytes()
			continue
		}
		group.Go(func() error {
			defer done.add(b.Size)
			return a.put(putting, b.Descriptor, func(w io.Writer) error { return a.write(w, b) })
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // the rest of the section was not read
		return err
	}
	return in.end()
}

// blob reads the description of a blob. The bytes that it takes from the store are subtracted from takes.
func (a *applier) blob(in *scanner, takes *int64) made {
	b := made{Descriptor: ocispec.Descriptor{Digest: in.digest(), Size: in.number(maxSize)}}
	if id := in.text(); len(id) > 0 {
		b.recipe = regzip.Recipe{Encoder: regzip.ID(id), Header: in.text()}
	}
	frame, end := in.number(a.Store), int64(0)
	for n := in.number(maxRanges); n > 0 && in.err == nil; n-- {
		f := span{frame, in.number(a.Store)}
		frame += f.size
		r := span{at: end + in.signed()}
		r.size = in.number(a.Store)
		end = r.at + r.size
		if !f.inside(a.Store) || r.size > 0 && !r.inside(a.Store) {
			in.fail(errors.New("a range lies outside the store"))
			break
		}
		if f.size+r.size == 0 && n > 1 {
			in.fail(errors.New("a step is empty"))
		}
		if *takes -= f.size + r.size; *takes < 0 {
			in.fail(errors.New("the blobs repeat the store too often"))
		}
		b.spans = append(b.spans, f, r)
	}
	return b
}

// write writes the bytes of a blob.
func (a *applier) write(w io.Writer, b made) error {
	var closer io.Closer
	if b.recipe.Encoder != "" {
		gz, err := b.recipe.NewWriter(w)
		if err != nil {
			return err
		}
		w, closer = gz, gz
	}
	buf, out := make([]byte, 64<<10), bufio.NewWriterSize(w, 64<<10)
	for _, s := range b.spans {
		if err := a.store.copyTo(out, s, buf); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if closer != nil {
		return closer.Close()
	}
	return nil
}
