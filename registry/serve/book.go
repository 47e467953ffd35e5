package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// A book is one open bundle: its reader, the state of its blobs, and the number of its users. The file is closed after
// the last use. Methods are safe for concurrent use.
type book struct {
	path   string
	reader *bundle.Reader
	frames *frames
	slots  chan struct{} // a token for each blob being checked
	log    *slog.Logger
	opened bundle.Stamp // state of the file when opened

	mu      sync.Mutex
	readers int
	stamp   bundle.Stamp             // state of the file when checks began
	changes int                      // number of changes of the file since
	checks  map[digest.Digest]*check // results for the file at stamp
	docs    map[digest.Digest]*document
	refs    int // references in docs
}

// A check compares one whole blob with its digest.
type check struct {
	done chan struct{} // closed when err is set
	err  error
}

// errChanged means the file was written to while a blob was checked.
var errChanged = errors.New("the bundle's file is being modified")

func (s *Server) openBook(path string) (*book, error) {
	r, err := s.open(path)
	if err != nil {
		return nil, err
	}
	stamp, err := r.Stamp()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &book{
		path: path, reader: r, frames: s.frames, slots: s.checks, log: s.log.With("bundle", path),
		readers: 1, opened: stamp, stamp: stamp, checks: make(map[digest.Digest]*check),
		docs: make(map[digest.Digest]*document),
	}, nil
}

// retain keeps the book open until the matching release. The caller must already hold it.
func (b *book) retain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
}

func (b *book) release() {
	b.mu.Lock()
	b.readers--
	last := b.readers == 0
	b.mu.Unlock()
	if !last {
		return
	}
	b.frames.drop(b)
	if err := b.reader.Close(); err != nil {
		b.log.Warn("close bundle", "error", err)
	}
}

// readFrame reads a frame and checks whether the file was written to. If so, all results about blobs are void: changed
// frames have other checksums, and blobs are checked again.
func (b *book) readFrame(number int, raw *[]byte, buf []byte) ([]byte, error) {
	content, err := b.reader.ReadFrame(number, raw, buf)
	stamp, stampErr := b.reader.Stamp()
	if stampErr != nil {
		return nil, errors.Join(err, stampErr)
	}
	b.mu.Lock()
	changed := stamp != b.stamp
	if changed {
		b.stamp = stamp
		b.changes++
		b.checks = make(map[digest.Digest]*check)
	}
	b.mu.Unlock()
	if changed {
		b.log.Warn("the bundle was modified since it was opened: all its blobs are checked again; if it was replaced, send SIGHUP")
	}
	return content, err
}

// checked returns the check of a blob for the file's present state, and starts it if necessary. It continues without
// its caller.
func (b *book) checked(ctx context.Context, d digest.Digest, size int64) *check {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.checks[d]; c != nil {
		return c
	}
	c := &check{done: make(chan struct{})}
	b.checks[d] = c
	b.readers++
	go b.check(context.WithoutCancel(ctx), blob{b, d, size}, c) // others wait for it, too
	return c
}

// check hashes a blob and sets the result. It starts over a few times if the file is written to meanwhile.
func (b *book) check(ctx context.Context, x blob, c *check) {
	d := x.digest
	defer b.release()
	b.slots <- struct{}{}
	const tries = 3
	for range tries {
		before := b.changed()
		if c.err = b.hash(ctx, d, x.size); b.holds(d, c, before) {
			break
		}
		c.err = fmt.Errorf("blob %s: %w", d, errChanged)
	}
	<-b.slots
	if c.err != nil {
		b.log.Error("a blob is not served", "digest", d, "error", c.err)
		b.forgive(d, c)
	}
	close(c.done)
}

func (b *book) changed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changes
}

// holds reports whether the file is unchanged since c began, and registers c as the check of d again, since a change
// discards it.
func (b *book) holds(d digest.Digest, c *check, before int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks[d] = c
	return b.changes == before
}

// forgive discards a failure other than damage: an unreadable disk may recover.
func (b *book) forgive(d digest.Digest, c *check) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.checks[d] == c && !errors.Is(c.err, bundle.ErrDamaged) {
		delete(b.checks, d)
	}
}

// wait waits for the blob's check and returns its result.
func (c *check) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// good reports whether the check has succeeded.
func (c *check) good() bool {
	select {
	case <-c.done:
		return c.err == nil
	default:
		return false
	}
}

// hash reads a whole blob and compares its digest.
func (b *book) hash(ctx context.Context, d digest.Digest, size int64) error {
	h := sha256.New()
	err := b.pieces(ctx, d, size, func(piece []byte) { h.Write(piece) })
	if err != nil {
		return fmt.Errorf("blob %s: %w", d, err)
	}
	if got := digest.NewDigest(digest.SHA256, h); got != d {
		return &bundle.DamageError{Blob: d, Offset: -1, Reason: "content has digest " + string(got)}
	}
	return nil
}

// pieces passes the blob's content to use, piece by piece; a piece is valid during the call.
func (b *book) pieces(ctx context.Context, d digest.Digest, size int64, use func(piece []byte)) error {
	for at := int64(0); at < size; {
		p, err := b.reader.Piece(d, at)
		if err != nil {
			return err
		}
		l, err := b.frames.lease(ctx, b, p)
		if err != nil {
			return err
		}
		use(l.content[p.Skip:][:p.Size])
		l.release()
		at += int64(p.Size)
	}
	return nil
}

// read returns a blob of at most most bytes, compared with its digest.
func (b *book) read(ctx context.Context, d digest.Digest, most int64) ([]byte, error) {
	size, ok := b.reader.Stat(d)
	if !ok {
		return nil, fmt.Errorf("the bundle has no blob %s", d)
	}
	if size > most {
		return nil, fmt.Errorf("blob %s has %d bytes; at most %d were expected", d, size, most)
	}
	data := make([]byte, 0, size)
	if err := b.pieces(ctx, d, size, func(piece []byte) { data = append(data, piece...) }); err != nil {
		return nil, fmt.Errorf("blob %s: %w", d, err)
	}
	if got := digest.FromBytes(data); got != d {
		return nil, &bundle.DamageError{Blob: d, Offset: -1, Reason: "content has digest " + string(got)}
	}
	return data, nil
}

// verify checks the whole bundle, and records its blobs as intact.
func (b *book) verify(ctx context.Context) error {
	before, err := b.reader.Stamp()
	if err != nil {
		return err
	}
	if _, err := b.reader.Verify(ctx, bundle.VerifyOptions{}); err != nil {
		return err
	}
	after, err := b.reader.Stamp()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if before != b.stamp || after != b.stamp {
		return fmt.Errorf("%s: %w: start again with a complete bundle", b.path, errChanged)
	}
	done := make(chan struct{})
	close(done)
	all := &check{done: done}
	for _, blob := range b.reader.Blobs() {
		b.checks[blob.Digest] = all
	}
	return nil
}

// progress counts the checked blobs, and the damaged ones among them.
func (b *book) progress() (good, bad int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.checks {
		select {
		case <-c.done:
			if c.err != nil {
				bad++
			} else {
				good++
			}
		default:
		}
	}
	return good, bad
}

// A blob is content of an open bundle.
type blob struct {
	book   *book
	digest digest.Digest
	size   int64
}

// blob returns the book's blob for a descriptor.
func (b *book) blob(d ocispec.Descriptor) (blob, bool) {
	size, ok := b.reader.Stat(d.Digest)
	return blob{b, d.Digest, size}, ok
}
