package bundle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// VerifyOptions configure Verify. The zero value is valid.
type VerifyOptions struct {
	Jobs int // blobs checked at a time; 0 means one per processor, at most 8
	// Progress, if not nil, receives the bytes of the bundle read so far and in total. Calls do not overlap.
	Progress func(done, total int64)
	// Accept, if not nil, receives the index before any content is read. Its error ends Verify.
	Accept func(Index) error
}

func (o VerifyOptions) accept(x Index) error {
	if o.Accept == nil {
		return nil
	}
	return o.Accept(x)
}

// A Report is the result of Verify.
type Report struct {
	Digest  digest.Digest // the bundle's identity
	Size    int64         // bytes of the bundle
	Items   int
	Frames  int            // read and compared
	Blobs   int            // in the directory
	Content int64          // bytes of all blobs
	Damage  []*DamageError // every bad blob once, by place in the file
}

// maxOwners bounds how many items a DamageError lists.
const maxOwners = 20

// Verify reads the whole bundle and proves that the two ways to read it agree. Every byte that `zstd -dc` yields is
// either content of one blob of the directory, with the right digest, or framing that the format requires. Every blob
// that the items need exists, with the right size, and there are no others. The error matches ErrDamaged if there is
// any damage; the report lists all of it. Memory per job is a frame and its content, about twice the frame size.
func (r *Reader) Verify(ctx context.Context, o VerifyOptions) (Report, error) {
	if err := o.accept(r.index); err != nil {
		return Report{}, err
	}
	v := &verifier{r: r, src: r, bad: make(map[format.Sum]*DamageError), progress: o.Progress}
	if o.Jobs <= 0 {
		o.Jobs = ReadJobs()
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(o.Jobs)
	for s := range r.layout.Segments() {
		if groupCtx.Err() != nil {
			break
		}
		s.Units = slices.Clone(s.Units)
		group.Go(func() error { return v.segment(groupCtx, s) })
	}
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return Report{}, err
	}
	if err := v.references(ctx, false); err != nil {
		return Report{}, err
	}
	return v.report()
}

// A verifier collects damage.
type verifier struct {
	r        *Reader
	src      blobSource // of indexes and manifests
	progress func(done, total int64)

	mu     sync.Mutex
	done   int64
	bad    map[format.Sum]*DamageError
	others []*DamageError // damage to the structure
}

func (v *verifier) add(s format.Sum, e *DamageError) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.bad[s]; !known {
		e.Blob = s.Digest()
		v.bad[s] = e
	}
}

func (v *verifier) addOther(e *DamageError) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.others = append(v.others, e)
}

func (v *verifier) read(n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done += n
	if v.progress != nil {
		v.progress(v.done, v.r.size)
	}
}

// segment checks one segment's frames. Only the end of ctx is an error.
func (v *verifier) segment(ctx context.Context, s format.Segment) error {
	if s.Kind == format.SegmentBlob {
		return v.blob(ctx, v.r.layout.Blobs[s.Blob])
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f := v.r.frames[s.First]
	raw, out := v.r.raw.Get().(*[]byte), v.r.decoded.Get().(*[]byte)
	defer func() { v.r.raw.Put(raw); v.r.decoded.Put(out) }()
	content, err := v.r.content(f, raw, out)
	v.read(int64(f.Len))
	if err != nil {
		v.lostFrame(s, asDamage(err, f.Off))
		return nil
	}
	switch {
	case s.Kind == format.SegmentGlue:
		v.glue(s, content)
	case s.Kind == format.SegmentIndex && digest.FromBytes(content) != v.r.identity:
		v.addOther(format.Damage(f.Off, "index.json changed since the bundle was opened"))
	}
	return nil
}

// lostFrame attributes a frame's damage to the small blobs in it, or to the structure if there are none.
func (v *verifier) lostFrame(s format.Segment, e *DamageError) {
	blamed := false
	for _, u := range s.Units {
		if b := unitBlob(&v.r.layout, u); b != nil {
			each := *e
			v.add(b.Sum, &each)
			blamed = true
		}
	}
	if !blamed {
		v.addOther(e)
	}
}

// blob checks a blob with its own frames.
func (v *verifier) blob(ctx context.Context, b format.Blob) error {
	rc := v.r.stream(ctx, b, 0, true)
	frame := int(b.Frame)
	_, err := io.Copy(writerFunc(func([]byte) { // one call per frame
		v.read(int64(v.r.frames[frame].Len))
		frame++
	}), rc)
	if err := errors.Join(ctx.Err(), rc.Close()); err != nil {
		return err
	}
	if err != nil {
		v.add(b.Sum, asDamage(err, v.r.frames[b.Frame].Off))
	}
	return nil
}

// asDamage turns any read error into damage: for verifying, a bad sector equals a flipped bit.
func asDamage(err error, off int64) *DamageError {
	if e, ok := errors.AsType[*DamageError](err); ok {
		return e
	}
	return &DamageError{Offset: off, Reason: "cannot be read", Err: err}
}

type writerFunc func(b []byte)

func (w writerFunc) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

func (v *verifier) glue(s format.Segment, content []byte) {
	for _, u := range s.Units {
		err := checkUnit(&v.r.layout, u, content)
		if err == nil {
			continue
		}
		e := &DamageError{Offset: v.r.frames[s.First].Off, Reason: fmt.Sprintf("frame %d", s.First), Err: err}
		if u.Kind == format.UnitBlob {
			v.add(v.r.layout.Blobs[u.Blob].Sum, e)
		} else {
			v.addOther(e)
		}
	}
}

// checkUnit compares a unit of a glue frame with the expected bytes: header and padding byte by byte, a small blob by
// its digest.
func checkUnit(l *format.Layout, u format.Unit, content []byte) error {
	want, err := l.Header(u)
	if err != nil {
		return err
	}
	have := content[u.At : u.At+u.Size]
	if !bytes.Equal(have[:len(want)], want) {
		names := map[format.UnitKind]string{
			format.UnitLayout: format.LayoutName, format.UnitIndex: format.IndexName,
			format.UnitDirectory: format.DirectoryName, format.UnitBlob: "the blob",
		}
		return fmt.Errorf("the tar entry of %s does not match the directory", names[u.Kind])
	}
	rest := have[len(want):]
	if b := unitBlob(l, u); b != nil {
		if got := format.Sum(sha256.Sum256(rest[:b.Size])); got != b.Sum {
			return fmt.Errorf("content has digest %s", got.Digest())
		}
		rest = rest[b.Size:]
	}
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return errors.New("the padding in the tar has bytes other than zero")
	}
	return nil
}

// references walks from the items, names the items of bad blobs, and finds missing, unneeded and misplaced blobs. If
// not the whole bundle was read, it only names the items.
func (v *verifier) references(ctx context.Context, partly bool) error {
	incomplete := partly
	w := &walk{src: v.src}
	w.report = func(s format.Sum, it Item, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if incomplete = true; !partly {
			v.add(s, &DamageError{Offset: -1, Reason: "invalid", Err: err})
		}
		return nil
	}
	owners := make(map[format.Sum][]string)
	w.visit = func(s format.Sum, it Item) {
		if len(owners[s]) < maxOwners {
			owners[s] = append(owners[s], it.String())
		}
	}
	if err := w.run(ctx, v.r.index.Items); err != nil {
		if ctx.Err() != nil {
			return err
		}
		incomplete = true
		v.addOther(&DamageError{Offset: -1, Reason: "its items", Err: err})
	}
	for s, e := range v.bad {
		e.Items = owners[s]
	}
	if !incomplete {
		v.strangers(w)
	}
	return nil
}

// strangers finds blobs that no item needs, and a wrong order.
func (v *verifier) strangers(w *walk) {
	for _, b := range v.r.dir.Blobs {
		if w.nodes[b.Sum] == nil {
			v.add(b.Sum, &DamageError{Offset: v.r.frames[b.Frame].Off, Reason: "nothing in the bundle refers to it"})
		}
	}
	order := w.order()
	same := func(a, b format.Blob) bool { return a.Sum == b.Sum }
	if len(order) == len(v.r.layout.Blobs) && !slices.EqualFunc(order, v.r.layout.Blobs, same) {
		v.addOther(format.Damage(0, "the order of the blobs deviates from the format"))
	}
}

// files returns the problems with the files of a bundle in parts that did not cause other damage.
func (v *verifier) files(known []*DamageError) []*DamageError {
	if v.r.parts == nil {
		return nil
	}
	var all []*DamageError
	for _, err := range v.r.parts.Wrong() {
		if !slices.ContainsFunc(known, func(e *DamageError) bool { return errors.Is(e, err) }) {
			all = append(all, &DamageError{Offset: -1, Reason: "its files", Err: err})
		}
	}
	return all
}

func (v *verifier) report() (Report, error) {
	rep := Report{
		Digest: v.r.identity, Size: v.r.size, Items: len(v.r.index.Items), Frames: len(v.r.frames),
		Blobs: len(v.r.dir.Blobs), Damage: v.others,
	}
	for _, b := range v.r.dir.Blobs {
		rep.Content += b.Size
	}
	for _, e := range v.bad {
		rep.Damage = append(rep.Damage, e)
	}
	rep.Damage = append(rep.Damage, v.files(rep.Damage)...)
	for _, e := range rep.Damage {
		e.Part = v.r.partAt(e.Offset)
	}
	slices.SortFunc(rep.Damage, func(a, b *DamageError) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Blob, b.Blob), cmp.Compare(a.Reason, b.Reason))
	})
	var all error
	if len(rep.Damage) > 0 {
		errs := make([]error, len(rep.Damage))
		for i, e := range rep.Damage {
			errs[i] = e
		}
		all = errors.Join(errs...)
	}
	return rep, all
}

// ReadJobs is the number of blobs to read from a bundle at a time. Each takes the memory of a frame and its content.
func ReadJobs() int { return min(runtime.GOMAXPROCS(0), 8) }
