package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// inMemory is how many bytes of one blob from a pipe are held. A smaller blob is held as a whole and can be sent
// repeatedly. A larger one is sent in chunks of that size, of which only the last can be repeated.
const inMemory = 8 << 20

// errGone means the content came from a pipe and is no longer in memory.
var errGone = errors.New(
	"the content came from the pipe and cannot be read again: run the same push again, which continues")

// An origin is the source of a bundle's content: a *bundle.Reader, or a pipe.
type origin interface {
	Index() bundle.Index
	Digest() digest.Digest
	Stat(d digest.Digest) (size int64, ok bool)
	ReadBlob(ctx context.Context, d digest.Digest, max int64) ([]byte, error)
	Blob(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error)
}

// PushStream is Push for a bundle from a pipe: every blob is sent as it arrives, and nothing is written to disk.
//
// Manifests arrive first and are pushed when all their blobs are there, so tags are set as early as possible. A blob
// already at the registry is skipped in the pipe. A blob of more than 8 MiB is sent in chunks, so that a broken
// connection costs one chunk. If several repositories lack it, it is sent to all of them at once. If the registry has
// mounted another blob from one of its repositories before, it is sent only to the first and mounted into the others.
// If that fails, the next run sends it: a repeated push from a pipe continues like any other.
//
// Only the end of the stream proves that the bundle is whole. The error includes damage that Verify would find, except
// in blobs that the registry had, even if everything was pushed. Content at the registry has correct digests in any
// case.
func PushStream(ctx context.Context, s *bundle.Stream, o PushOptions) (PushSummary, error) {
	return pushFrom(ctx, newPipe(s, inMemory), o)
}

// A pipe turns a stream into an origin: blobs can be read as they pass.
type pipe struct {
	*bundle.Stream
	memory int64 // bytes held of one blob

	mu      sync.Mutex
	passing map[digest.Digest]*passingBlob
}

func newPipe(s *bundle.Stream, memory int64) *pipe {
	return &pipe{Stream: s, memory: memory, passing: map[digest.Digest]*passingBlob{}}
}

func (p *pipe) Blob(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error) {
	var content []byte
	var err error
	if p.Holds(d) {
		content, err = p.ReadBlob(ctx, d, maxManifest)
	} else {
		p.mu.Lock()
		b := p.passing[d]
		p.mu.Unlock()
		if b == nil {
			return nil, errGone
		}
		content, err = b.read(ctx)
	}
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > int64(len(content)) {
		return nil, fmt.Errorf("blob %s has no byte %d", d, offset)
	}
	return io.NopCloser(bytes.NewReader(content[offset:])), nil
}

// await reads a blob that fits into memory from the pipe. A request that opens the blob afterwards does not wait for
// the pipe: while it has its turn with the registry, the pipe may be waiting for that turn.
func (p *pipe) await(ctx context.Context, d digest.Digest) error {
	p.mu.Lock()
	b := p.passing[d]
	p.mu.Unlock()
	if b == nil {
		return nil
	}
	_, err := b.read(ctx)
	return err
}

func (p *pipe) pass(d digest.Digest, b *passingBlob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b == nil {
		delete(p.passing, d)
		return
	}
	p.passing[d] = b
}

// A passingBlob is a blob that fits into memory, into which it is read on first use.
type passingBlob struct {
	blob *bundle.StreamBlob

	once    sync.Once
	content []byte
	err     error
}

func (b *passingBlob) read(ctx context.Context) ([]byte, error) {
	b.once.Do(func() {
		b.content = make([]byte, 0, b.blob.Size)
		b.err = b.blob.Copy(ctx, func(piece []byte) error { b.content = append(b.content, piece...); return nil })
	})
	return b.content, b.err
}

// arrivals sends every blob to its places as it arrives.
func (p *pusher) arrivals(ctx context.Context, from *pipe) error {
	blobs := make(map[digest.Digest]*sharedBlob, len(p.blobs))
	for _, b := range p.blobs {
		if from.Holds(b.desc.Digest) { // an index or manifest that another item uses as a blob
			p.place(ctx, b)
			continue
		}
		blobs[b.desc.Digest] = b
	}
	var mu sync.Mutex
	err := from.Blobs(ctx, func(ctx context.Context, sb *bundle.StreamBlob) error {
		mu.Lock()
		b := blobs[sb.Digest]
		delete(blobs, sb.Digest)
		mu.Unlock()
		if b == nil {
			return nil
		}
		p.arrive(ctx, from, b, sb)
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the run says why it was stopped
	case err != nil && len(blobs) > 0:
		p.tally.abort(err) // items without their blobs have not failed, but are incomplete
		return nil
	}
	for d, b := range blobs { // empty if the stream is whole
		p.settleAll(ctx, b.places, &bundle.DamageError{Blob: d, Offset: -1, Reason: "missing from the pipe"})
	}
	return err
}

func (p *pusher) arrive(ctx context.Context, from *pipe, b *sharedBlob, sb *bundle.StreamBlob) {
	switch {
	case sb.Size != b.desc.Size:
		p.settleAll(ctx, b.places, &bundle.DamageError{
			Blob: sb.Digest, Offset: -1, Reason: fmt.Sprintf("%d bytes, but a manifest says %d", sb.Size, b.desc.Size),
		})
	case sb.Size <= from.memory || p.options.DryRun:
		from.pass(sb.Digest, &passingBlob{blob: sb})
		p.place(ctx, b)
		from.pass(sb.Digest, nil)
	default:
		p.placeLarge(ctx, from, b, sb)
	}
}

func (p *pusher) settleAll(ctx context.Context, places []*place, err error) {
	for _, pl := range places {
		for _, j := range pl.jobs {
			p.settle(ctx, j, err)
		}
	}
}

// placeLarge sends a blob to all places that lack it, reading it once.
func (p *pusher) placeLarge(ctx context.Context, pipe *pipe, b *sharedBlob, sb *bundle.StreamBlob) {
	p.query(ctx, b)
	from := b.from()
	var lacking []*place
	for _, pl := range b.places {
		switch {
		case !p.tally.wanted(pl):
			p.tally.advance(b.desc.Size)
		case pl.err != nil:
			p.settleAll(ctx, []*place{pl}, pl.err)
		case pl.have:
			p.tally.count(func(c *PushSummary) { c.BlobsPresent++ })
			p.tally.advance(b.desc.Size)
			p.settleAll(ctx, []*place{pl}, nil)
		default:
			lacking = append(lacking, pl)
		}
	}
	var later []*place
	if len(lacking) > 1 && p.tally.mounts() {
		later, lacking = lacking[1:], lacking[:1]
	}
	t := &tee{pusher: p, desc: b.desc, memory: pipe.memory}
	t.begin(ctx, lacking, from)
	t.copy(ctx, sb)
	if t.sent != "" {
		from = t.sent
	}
	atOnce(later, func(pl *place) { // errGone if the registry does not mount it
		p.settleAll(ctx, []*place{pl}, p.sendFrom(ctx, pl, b.desc, from,
			func(int64) (io.ReadCloser, error) { return nil, errGone }))
	})
}

// mounts reports whether the registry has mounted a blob in this run.
func (t *tally) mounts() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts.BlobsMounted > 0
}

// A tee sends one blob to several places at once. All request bodies are in memory: none waits for the pipe, or for
// another place.
type tee struct {
	*pusher
	desc    ocispec.Descriptor
	memory  int64         // bytes of a chunk, unless the registry requires more
	uploads []*pipeUpload // those that have not failed
	sent    string        // a repository that now has the blob
}

// A pipeUpload is a blob's upload to one place.
type pipeUpload struct {
	*upload
	place *place
	meter *meter
	fails error
}

// begin opens an upload for each place, unless the registry mounts the blob from another repository.
func (t *tee) begin(ctx context.Context, places []*place, from string) {
	for _, pl := range places {
		u := &pipeUpload{
			upload: &upload{repo: pl.repo, desc: t.desc}, place: pl,
			meter: &meter{advance: t.pusher.tally.advance},
		}
		mounted := false
		err := pl.repo.retry.do(ctx, "upload of "+t.desc.Digest.String()+" to "+pl.repo.name, passingUpload,
			func() (err error) {
				mounted, err = u.start(ctx, from)
				return err
			})
		switch {
		case err != nil:
			t.settle(ctx, u, err)
		case mounted:
			t.pusher.tally.arrived(u.place, t.desc, true)
			t.settle(ctx, u, nil)
		default:
			t.uploads = append(t.uploads, u)
		}
	}
}

// settle reports the outcome of an upload.
func (t *tee) settle(ctx context.Context, u *pipeUpload, err error) {
	if err == nil {
		u.meter.end(t.desc.Size)
		t.sent = u.name
	} else {
		u.meter.end(0)
		u.abandon(ctx)
		if !errors.Is(err, bundle.ErrDamaged) {
			err = fmt.Errorf("blob %s: %w", t.desc.Digest, t.session.explain(u.name, err))
		}
	}
	t.settleAll(ctx, []*place{u.place}, err)
}

// errNobody ends the reading of a blob that no place accepts any more.
var errNobody = errors.New("all places have failed")

// copy reads the blob and sends it to all places, chunk by chunk. A chunk starts when all places have the previous one.
func (t *tee) copy(ctx context.Context, sb *bundle.StreamBlob) {
	if len(t.uploads) == 0 {
		return
	}
	size := t.memory
	for _, u := range t.uploads {
		size = max(size, u.minChunk)
	}
	var err error
	if size > maxMinChunk {
		err = fmt.Errorf("the registry requires chunks of at least %d MiB, which is too much for a pipe: push from a file", size>>20)
	}
	chunk, at := []byte(nil), int64(0)
	flush := func() error {
		t.chunk(ctx, chunk, at)
		at, chunk = at+int64(len(chunk)), chunk[:0]
		if len(t.uploads) == 0 {
			return errNobody
		}
		return nil
	}
	if err == nil {
		chunk = make([]byte, 0, size)
		err = sb.Copy(ctx, func(piece []byte) error {
			for len(piece) > 0 {
				n := min(len(piece), cap(chunk)-len(chunk))
				chunk, piece = append(chunk, piece[:n]...), piece[n:]
				if len(chunk) == cap(chunk) {
					if err := flush(); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err == nil && len(chunk) > 0 {
		err = flush()
	}
	for _, u := range t.uploads { // none after errNobody
		if err == nil {
			t.settle(ctx, u, t.end(ctx, u))
		} else {
			t.settle(ctx, u, err)
		}
	}
}

// maxMinChunk bounds the memory of one blob if a registry requires large chunks.
const maxMinChunk = 64 << 20

// chunk sends the bytes from at on to all uploads concurrently and drops failed uploads.
func (t *tee) chunk(ctx context.Context, chunk []byte, at int64) {
	var wg sync.WaitGroup
	for _, u := range t.uploads {
		wg.Go(func() { u.fails = u.bring(ctx, chunk, at) })
	}
	wg.Wait()
	var left []*pipeUpload
	for _, u := range t.uploads {
		if u.fails != nil {
			t.settle(ctx, u, u.fails)
		} else {
			left = append(left, u)
		}
	}
	t.uploads = left
}

// bring makes sure that the registry has the blob up to the end of chunk, which begins at byte at. A broken upload is
// resumed at the registry's offset.
func (u *pipeUpload) bring(ctx context.Context, chunk []byte, at int64) error {
	end := at + int64(len(chunk))
	u.blob = &blobStream{open: func(offset int64) (io.ReadCloser, error) {
		if offset < at || offset > end {
			return nil, errGone
		}
		return io.NopCloser(bytes.NewReader(chunk[offset-at:])), nil
	}}
	defer u.blob.close()
	broken := false
	return u.retry.do(ctx, "upload of "+u.desc.Digest.String()+" to "+u.name, passingUpload, func() error {
		if broken {
			if err := u.again(ctx, at, end); err != nil {
				return err
			}
		}
		broken = true
		for u.offset < end {
			size := end - u.offset
			if most := u.session.chunk.Load(); most > 0 {
				size = min(size, max(most, u.minChunk))
			}
			before := u.offset
			err := u.patch(ctx, size)
			if te, ok := asRegistryError(err); ok && u.smaller(te, size) {
				continue
			}
			if err != nil {
				return err
			}
			u.meter.add(int(max(u.offset-before, 0)))
		}
		return nil
	})
}

// again finds the offset to resume a broken upload: a byte still in memory, or the start if that is.
func (u *pipeUpload) again(ctx context.Context, at, end int64) error {
	resumed, err := u.resume(ctx)
	if err != nil {
		return err
	}
	if !resumed && at == 0 {
		_, err = u.start(ctx, "")
		return err
	}
	if !resumed || u.offset < at || u.offset > end {
		return errGone
	}
	return nil
}

// end completes an upload. If the answer was lost, it queries whether the registry has the blob.
func (t *tee) end(ctx context.Context, u *pipeUpload) error {
	broken := false
	err := u.retry.do(ctx, "upload of "+t.desc.Digest.String()+" to "+u.name, passingUpload, func() error {
		if broken {
			switch have, err := u.lookUp(ctx, t.desc); {
			case err != nil:
				return err
			case have:
				u.location = ""
				return nil
			}
		}
		broken = true
		return u.finish(ctx, 0)
	})
	if err == nil {
		t.pusher.tally.arrived(u.place, t.desc, false)
	}
	return err
}
