package delta

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/encoders"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// A Created describes a delta that Create has written.
type Created struct {
	Head
	Bytes   int64 // of the delta
	Blobs   int   // of NEW that OLD lacks
	Rebuilt int64 // bytes of blobs that are gzip streams made again
	Kept    int64 // bytes of gzip streams that no known encoder makes; they are carried as they are
}

// Create writes the delta from o.Old, or the bundle of o.Listed, to next. Before the delta gets its name, it is
// applied once, and the result is compared with next. Temporary files, about as large as the unpacked bundles, lie in
// the directory of the output.
func Create(ctx context.Context, next bundle.From, o Options) (_ Created, err error) {
	for _, r := range []*bundle.From{o.Old, &next} {
		if r != nil && r.Encrypted() {
			return Created{}, fmt.Errorf(
				"%s is encrypted: deltas are made of bundles in clear; use kkbundle copy --decrypt first", r.Name)
		}
	}
	if err := disk.CheckOutput(o.Output); err != nil {
		return Created{}, err
	}
	c := &creator{o: o, next: next, known: map[[sha256.Size]byte]*piece{}}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, step := range []func(context.Context) error{c.describe, c.scanOld, c.scanNew, c.pack} {
		if err := step(ctx); err != nil {
			return Created{}, err
		}
	}
	if err := c.prove(ctx); err != nil {
		return Created{}, err
	}
	err = disk.WriteFileWith(o.Output, 0o644, func(w io.Writer) error {
		return c.whole.copyTo(w, span{0, c.whole.size}, make([]byte, 1<<20))
	})
	return c.Created, err
}

type creator struct {
	Created
	o     Options
	next  bundle.From
	known map[[sha256.Size]byte]*piece
	old   *scan
	added *scan
	parts [numSection]*spool // the sections
	whole *spool             // the delta, until it is proved
}

func (c *creator) close() (err error) {
	for _, s := range []*scan{c.old, c.added} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	for _, s := range append(c.parts[:], c.whole) {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// describe reads NEW once, which checks it, and fills in the head.
func (c *creator) describe(ctx context.Context) error {
	c.Head = Head{
		Version: 1, Requires: []string{}, New: c.next.Digest(), Encoder: c.next.Encoder(),
		FrameSize: c.next.FrameSize(), Size: c.next.Size(),
	}
	switch {
	case c.o.Old != nil:
		c.Old = c.o.Old.Digest()
	case c.o.Listed != nil:
		c.Old = c.o.Listed.Digest
	}
	enc, err := format.NewEncoder(c.next.Level(), 1)
	if err != nil {
		return err
	}
	if enc.ID != c.Encoder || enc.FrameSize != c.FrameSize {
		return &EncoderError{c.next.Name, c.Encoder, enc.ID}
	}
	src, err := bundle.Combine(nil, c.next)
	if err != nil {
		return err
	}
	sum := sha256.New()
	s, err := bundle.Write(ctx, sum, src, c.next.Index(), bundle.WriteOptions{
		Progress: func(done, total int64) { c.o.progress("check", done, total) },
	})
	if err != nil {
		return fmt.Errorf("%s: %w", c.next.Name, err)
	}
	if s.Size != c.Size {
		return fmt.Errorf("%s cannot be made again from its blobs: build it again with this kkbundle", c.next.Name)
	}
	c.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// names returns a name for each blob: its item without a version, and its place in the item.
func names(ctx context.Context, r *bundle.Reader) (map[digest.Digest]string, error) {
	all, number, last := map[digest.Digest]string{}, 0, ""
	err := r.Needs(ctx, r.Index().Items, func(it bundle.Item, b ocispec.Descriptor) {
		if s := it.String(); s != last {
			last, number = s, 0
		}
		number++
		if _, ok := all[b.Digest]; !ok {
			all[b.Digest] = fmt.Sprintf("blob %s/%s/%s#%c", it.Kind, cmp.Or(it.Name, it.Ref),
				bundle.PlatformString(it.Descriptor.Platform), rune('a'+number))
		}
	})
	return all, err
}

// scanOld reads the blobs of OLD, those that NEW lacks first: their pieces are the likely older versions.
func (c *creator) scanOld(ctx context.Context) (err error) {
	dir := filepath.Dir(c.o.Output)
	if c.o.Old == nil {
		c.old, err = newScan(nil, dir, c.known, true)
		return err
	}
	if c.old, err = newScan(c.o.Old.Reader, dir, c.known, true); err != nil {
		return err
	}
	called, err := names(ctx, c.o.Old.Reader)
	if err != nil {
		return err
	}
	blobs := c.o.Old.Blobs()
	slices.SortStableFunc(blobs, func(a, b ocispec.Descriptor) int {
		_, inA := c.next.Stat(a.Digest)
		_, inB := c.next.Stat(b.Digest)
		return order(inA) - order(inB)
	})
	blobs = append([]ocispec.Descriptor{{Digest: c.Old}}, blobs...)
	done := newTally(func(n int64) { c.o.progress("read the old bundle", n, sum(blobs)) })
	for _, b := range blobs {
		l := &layer{Descriptor: b}
		if b.Digest != c.Old {
			if l.unzip, err = gzipped(ctx, c.o.Old.Reader, b.Digest); err != nil {
				return err
			}
		}
		err := c.old.add(ctx, l, cmp.Or(called[b.Digest], "index"))
		if err != nil && l.unzip && ctx.Err() == nil && !isDisk(err) { // not gzip to its end
			l = &layer{Descriptor: b}
			err = c.old.add(ctx, l, called[b.Digest])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.o.Old.Name, err)
		}
		done.add(b.Size)
	}
	return nil
}

func order(later bool) int {
	if later {
		return 1
	}
	return 0
}

// isDisk reports whether err is about a file, not about content.
func isDisk(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) || errors.Is(err, bundle.ErrDamaged)
}

func sum(blobs []ocispec.Descriptor) (n int64) {
	for _, b := range blobs {
		n += b.Size
	}
	return n
}

// scanNew reads the blobs of NEW that OLD lacks.
func (c *creator) scanNew(ctx context.Context) (err error) {
	if c.added, err = newScan(c.next.Reader, filepath.Dir(c.o.Output), c.known, false); err != nil {
		return err
	}
	called, err := names(ctx, c.next.Reader)
	if err != nil {
		return err
	}
	index, err := c.next.Index().Marshal()
	if err != nil {
		return err
	}
	layers := []*layer{{Descriptor: ocispec.Descriptor{Digest: c.New, Size: int64(len(index))}}}
	for _, b := range c.next.Blobs() {
		if c.o.has(b.Digest) {
			continue
		}
		layers = append(layers, &layer{Descriptor: b})
		c.Content += b.Size
	}
	c.Content += int64(len(index))
	c.Blobs = len(layers) - 1
	if err := c.identify(ctx, layers[1:]); err != nil {
		return err
	}
	done := newTally(func(n int64) { c.o.progress("read the new bundle", n, c.Content) })
	for _, l := range layers {
		if err := c.added.add(ctx, l, cmp.Or(called[l.Digest], "index")); err != nil {
			return fmt.Errorf("%s: %w", c.next.Name, err)
		}
		done.add(l.Size)
	}
	return nil
}

// identify finds the encoders of gzip streams, several at a time.
func (c *creator) identify(ctx context.Context, layers []*layer) error {
	done := newTally(func(n int64) { c.o.progress("identify encoders", n, c.Content) })
	record := cmp.Or(c.o.Encoders, &encoders.Record{})
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(jobs())
	for _, l := range layers {
		group.Go(func() error {
			defer done.add(l.Size)
			var err error
			if l.gzip, err = gzipped(ctx, c.next.Reader, l.Digest); err != nil || !l.gzip {
				return err
			}
			l.recipe, l.unzip, err = record.Identify(ctx, l.Digest,
				func() (io.ReadCloser, error) { return c.next.Unhashed(ctx, l.Digest, 0) })
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%s: %w", c.next.Name, err)
	}
	for _, l := range layers {
		switch {
		case l.unzip:
			c.Rebuilt += l.Size
		case l.gzip:
			c.Kept += l.Size
		}
	}
	return nil
}

// pack writes the sections.
func (c *creator) pack(ctx context.Context) (err error) {
	for i := range c.parts {
		if c.parts[i], err = newSpool(filepath.Dir(c.o.Output)); err != nil {
			return err
		}
	}
	entries := plan(c.added, c.old)
	for _, e := range entries {
		for _, d := range e.dict {
			d.used = true
		}
	}
	for _, l := range c.added.layers {
		for _, f := range l.files {
			f.file.used = true
		}
		l.frame.used = true
	}
	if err := c.packBase(); err != nil {
		return err
	}
	at := c.Base
	for _, e := range entries {
		for _, p := range e.parts {
			if p.address < 0 {
				p.address = at
			}
			at += p.span.size
		}
	}
	c.Store = at
	if err := c.checkTakes(); err != nil {
		return err
	}
	if err := c.packMade(ctx, entries); err != nil {
		return err
	}
	return c.packBlobs()
}

// checkTakes returns an error if a reader would refuse the blobs.
func (c *creator) checkTakes() error {
	n := int64(0)
	for _, l := range c.added.layers {
		n += l.frame.size
		for _, f := range l.files {
			n += f.file.size
		}
	}
	if n > c.takes() {
		return fmt.Errorf("%s: its layers repeat the same files more than %d times, which a delta may not: carry the whole bundle", c.next.Name, blobRatio)
	}
	return nil
}

// packBase writes the section base and gives its pieces their addresses.
func (c *creator) packBase() error {
	used := map[int][]*piece{}
	for _, p := range c.old.pieces {
		if p.used && p.size > 0 {
			used[p.blob] = append(used[p.blob], p)
		}
	}
	b := binary.AppendUvarint(nil, uint64(len(used)))
	for i, l := range c.old.layers {
		if len(used[i]) == 0 {
			continue
		}
		var err error
		if b, err = appendDigest(b, l.Digest); err != nil {
			return err
		}
		b = append(b, byte(order(l.unzip)))
		b = binary.AppendUvarint(b, uint64(len(used[i])))
		for _, p := range used[i] {
			p.address = c.Base
			c.Base += p.size
			b = binary.AppendUvarint(b, uint64(len(p.from)))
			at := int64(0)
			for _, r := range p.from {
				b = binary.AppendUvarint(b, uint64(r.at-at))
				b = binary.AppendUvarint(b, uint64(r.size))
				at = r.at + r.size
			}
		}
	}
	return c.put(sectionBase, b)
}

func appendDigest(b []byte, d digest.Digest) ([]byte, error) {
	s, err := format.ParseDigest(d)
	return append(b, s[:]...), err
}

// put writes a section that is one zstd frame.
func (c *creator) put(number int, plain []byte) error {
	data, err := packZstd(plain, nil)
	if err != nil {
		return err
	}
	_, err = c.parts[number].Write(data)
	c.Sections[number] = c.parts[number].size
	return err
}

// packMade writes the entries, compressing several at a time.
func (c *creator) packMade(ctx context.Context, entries []entry) error {
	const together = 2 // each takes hundreds of MiB of memory
	out := c.parts[sectionMade]
	for done := int64(0); len(entries) > 0; {
		batch := entries[:min(together, len(entries))]
		entries = entries[len(batch):]
		packed := make([][]byte, len(batch))
		group, ctx := errgroup.WithContext(ctx)
		for i, e := range batch {
			group.Go(func() (err error) {
				if err := ctx.Err(); err != nil {
					return err
				}
				packed[i], err = e.pack(ctx, c.o.Zstd)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for i, e := range batch {
			if kind(packed[i][0]) == kindCode {
				c.Requires = []string{featureCode}
			}
			if _, err := out.Write(packed[i]); err != nil {
				return err
			}
			done += sizeOf(e.parts)
		}
		c.o.progress("compress", done, c.Store-c.Base)
	}
	c.Sections[sectionMade] = out.size
	return nil
}

// pack returns an entry's bytes in the section made. The program, if it is not "", compresses an entry without a
// dictionary.
func (e *entry) pack(ctx context.Context, program string) ([]byte, error) {
	content, err := load(e.parts)
	if err != nil {
		return nil, err
	}
	dict, err := load(e.dict)
	if err != nil {
		return nil, err
	}
	var found []code
	k := kindZstd
	if len(dict) == 0 { // a dictionary is not converted
		if found, err = e.code(); err != nil {
			return nil, err
		}
	}
	if len(found) > 0 {
		k = kindCode
		for _, c := range found {
			c.convert(content, toTarget)
		}
	}
	var data []byte
	if program != "" && len(dict) == 0 {
		data, err = packWith(ctx, program, content)
	} else {
		data, err = packZstd(content, dict)
	}
	if err != nil {
		return nil, err
	}
	if len(e.parts) == 1 && len(e.dict) == 1 && len(content) >= largePiece {
		edits, err := makeEdits(dict, content)
		if err != nil {
			return nil, err
		}
		if len(edits) < len(data) {
			k, data = kindEdits, edits
		}
	}
	b := []byte{byte(k)}
	b = binary.AppendUvarint(b, uint64(len(content)))
	b = binary.AppendUvarint(b, uint64(len(e.dict)))
	for _, d := range e.dict {
		b = binary.AppendUvarint(b, uint64(d.address+d.span.at))
		b = binary.AppendUvarint(b, uint64(d.span.size))
	}
	if k == kindCode {
		b = appendCode(b, found)
	}
	b = binary.AppendUvarint(b, uint64(len(data)))
	return append(b, data...), nil
}

// load reads parts into memory.
func load(parts []part) ([]byte, error) {
	b := make([]byte, sizeOf(parts))
	at := int64(0)
	for _, p := range parts {
		if _, err := p.in.ReadAt(b[at:at+p.span.size], p.at+p.span.at); err != nil {
			return nil, err
		}
		at += p.span.size
	}
	return b, nil
}

// packZstd compresses content with a dictionary, which may be nil.
func packZstd(content, dict []byte) ([]byte, error) {
	if len(content) == 0 {
		return nil, errors.New("nothing to compress")
	}
	window := 1 << min(max(bits.Len(uint(len(content)+len(dict)-1)), 10), bits.Len(maxWindow-1))
	options := []zstd.EOption{
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true),
	}
	if len(dict) > 0 {
		options = append(options, zstd.WithEncoderDictRaw(dictID, dict))
	}
	var out bytes.Buffer
	enc, err := zstd.NewWriter(&out, options...)
	if err != nil {
		return nil, err
	}
	if _, err := enc.Write(content); err != nil {
		return nil, errors.Join(err, enc.Close())
	}
	err = enc.Close()
	return out.Bytes(), err
}

// packBlobs writes the section blobs.
func (c *creator) packBlobs() error {
	b := binary.AppendUvarint(nil, uint64(len(c.added.layers)))
	for _, l := range c.added.layers {
		var err error
		if b, err = appendDigest(b, l.Digest); err != nil {
			return err
		}
		b = binary.AppendUvarint(b, uint64(l.Size))
		b = appendText(b, []byte(l.recipe.Encoder))
		if l.recipe.Encoder != "" {
			b = appendText(b, l.recipe.Header)
		}
		b = l.appendSteps(b)
	}
	return c.put(sectionBlobs, b)
}

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func (l *layer) appendSteps(b []byte) []byte {
	left, end := l.frame.size, int64(0)
	b = binary.AppendUvarint(b, uint64(max(0, l.frame.address)))
	b = binary.AppendUvarint(b, uint64(len(l.files)+1))
	for _, f := range l.files {
		b = binary.AppendUvarint(b, uint64(f.gap))
		b = binary.AppendVarint(b, f.file.address-end)
		b = binary.AppendUvarint(b, uint64(f.file.size))
		end = f.file.address + f.file.size
		left -= f.gap
	}
	b = binary.AppendUvarint(b, uint64(left))
	b = binary.AppendVarint(b, 0)
	return binary.AppendUvarint(b, 0)
}

// write writes the delta.
func (c *creator) write(w io.Writer) error {
	text, err := json.Marshal(c.Head)
	if err != nil {
		return err
	}
	if len(text) > maxHead {
		return errors.New("the head of the delta is too large")
	}
	all := sha256.New()
	out := bufio.NewWriterSize(w, 1<<20)
	both := io.MultiWriter(out, all)
	head := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(text)))
	if _, err := both.Write(append(head, text...)); err != nil {
		return err
	}
	c.Bytes = int64(len(head)+len(text)) + sha256.Size
	for _, s := range c.parts {
		if err := s.copyTo(both, span{0, s.size}, make([]byte, 64<<10)); err != nil {
			return err
		}
		c.Bytes += s.size
	}
	if _, err := out.Write(all.Sum(nil)); err != nil {
		return err
	}
	return out.Flush()
}

// prove applies the delta and compares the result with NEW.
func (c *creator) prove(ctx context.Context) (err error) {
	if c.whole, err = newSpool(filepath.Dir(c.o.Output)); err != nil {
		return err
	}
	if err := c.write(c.whole); err != nil {
		return err
	}
	f, err := parse(c.whole, c.whole.size)
	if err == nil {
		err = f.verify()
	}
	if err != nil {
		return err
	}
	if c.o.Listed != nil {
		f.lent = &c.next
	}
	o := c.o
	o.Progress = func(_ string, done, total int64) { c.o.progress("prove", done, total) }
	sum := sha256.New()
	_, err = f.apply(ctx, o, func(src bundle.Source, x bundle.Index) (bundle.Summary, error) {
		return bundle.Write(ctx, sum, src, x, bundle.WriteOptions{})
	})
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != c.SHA256 {
		err = errors.New("it makes other bytes")
	}
	if err != nil {
		return fmt.Errorf("the delta was made, but does not give %s again: %w", c.next.Name, err)
	}
	return nil
}
