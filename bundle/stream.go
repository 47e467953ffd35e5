package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Stream reads a bundle once, from its first byte to its last, as from a pipe. Nothing is written to disk. Memory
// grows only with the indexes and manifests (at most 256 MiB) and by about 100 bytes per blob and frame. Nothing in the
// stream is trusted.
//
// The price of a pipe: the end of the file, which describes its beginning, comes last. So damage to the structure shows
// only after sound blobs were handed on. After a frame with tar entries that does not decode, or a damaged frame
// length, the rest cannot be read.
type Stream struct {
	in       *format.FrameScanner
	dec      *zstd.Decoder
	jobs     int
	index    Index
	identity digest.Digest
	docs     *documents
	sizes    map[format.Sum]int64 // sizes of the blobs met so far
	blobs    []format.Blob        // in the order of the stream, with their positions
	first    *entry               // met but not handed on yet
	found    *verifier            // collects the damage

	frame  []byte // of glue, raw
	glue   []byte // its content
	at     int    // read position in glue
	pad    int    // bytes of padding at the start of the next glue frame
	tokens chan struct{}
	pieces sync.Pool // *piece

	indexSize int64
	ended     bool // the end was read and compared
	cut       bool // the rest cannot be read
	cancel    context.CancelCauseFunc
}

// errCut ends a blob's reader when the stream cannot be read further.
var errCut = errors.New("the stream cannot be read further")

// An entry is a blob of the tar.
type entry struct {
	format.Blob
	content []byte // of a small blob
}

// NewStream begins to read a bundle from src, up to and including the last index and manifest. jobs is the number of
// blobs processed at a time; 0 means one per processor, at most 8. When ctx ends, everything ends except a src.Read
// that is still waiting. An encrypted bundle is an *EncryptedError, unless src is the reader of Decrypt.
func NewStream(ctx context.Context, src io.Reader, jobs int) (*Stream, error) {
	if jobs <= 0 {
		jobs = min(runtime.GOMAXPROCS(0), 8)
	}
	dec, err := format.NewDecoder(max(2, runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("zstd decoder: %w", err)
	}
	if _, ok := src.(*agefile.Reader); !ok {
		src = agefile.Decrypt(src, nil)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{
		cancel: cancel,
		in:     format.NewFrameScanner(ctx, src),
		dec:    dec, jobs: jobs, sizes: make(map[format.Sum]int64),
		found:  &verifier{bad: make(map[format.Sum]*DamageError)},
		tokens: make(chan struct{}, 2*min(runtime.GOMAXPROCS(0), 8)+2),
	}
	s.pieces.New = func() any { return new(piece) }
	if err := s.begin(ctx); err != nil {
		cancel(err)
		return nil, fmt.Errorf("read the bundle from a stream: %w", err)
	}
	return s, nil
}

// Index returns the bundle's index. The caller must not change it.
func (s *Stream) Index() Index { return s.index }

// Digest returns the bundle's identity, the sha256 of its index.json.
func (s *Stream) Digest() digest.Digest { return s.identity }

// ReadBlob returns an index or manifest; no other blob can be read twice.
func (s *Stream) ReadBlob(_ context.Context, d digest.Digest, max int64) ([]byte, error) {
	id, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	data, ok := s.docs.held[id]
	if !ok {
		if e := s.found.bad[id]; e != nil {
			return nil, e
		}
		return nil, &DamageError{Blob: d, Offset: -1, Reason: "not an index or manifest"}
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("blob %s has %d bytes; at most %d were expected", d, len(data), max)
	}
	return data, nil
}

// Stat reports whether the bundle holds a blob, and its size. For an index or manifest, it reports whether it arrived;
// for any other blob, it trusts the first manifest that refers to it.
func (s *Stream) Stat(d digest.Digest) (size int64, ok bool) {
	id, err := format.ParseDigest(d)
	if err != nil {
		return 0, false
	}
	if data, ok := s.docs.held[id]; ok {
		return int64(len(data)), true
	}
	if s.found.bad[id] != nil {
		return 0, true // ReadBlob returns its problem
	}
	size, ok = s.docs.plain[id]
	return size, ok
}

// Holds reports whether a blob is an index or manifest, which Blobs does not hand on.
func (s *Stream) Holds(d digest.Digest) bool {
	id, err := format.ParseDigest(d)
	return err == nil && s.docs.held[id] != nil
}

// begin reads up to the last document.
func (s *Stream) begin(ctx context.Context) error {
	if err := s.head(); err != nil {
		return err
	}
	for !s.docs.complete() {
		e, err := s.next()
		if err != nil {
			return err
		}
		if e == nil || !s.docs.mayBe(e.Blob) {
			s.first = e
			for _, err := range s.docs.missing() {
				if m, ok := errors.AsType[*MissingError](err); ok {
					id, _ := format.ParseDigest(m.Digest) // already a document
					s.found.add(id, &DamageError{Offset: s.in.Off, Reason: "not before all contents", Err: err})
				}
			}
			return nil
		}
		if err := s.document(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// head reads oci-layout and index.json.
func (s *Stream) head() error {
	if err := s.nextGlue(); err != nil {
		return err
	}
	layout, err := format.TarHeader(format.LayoutName, int64(len(format.LayoutContent)))
	if err != nil {
		return err
	}
	layout = append(layout, format.LayoutContent...)
	layout = append(layout, make([]byte, format.TarBlock-len(format.LayoutContent))...)
	if !bytes.HasPrefix(s.glue, layout) {
		return format.Damage(0, "beginning: the tar's first entry is not %s", format.LayoutName)
	}
	s.at = len(layout)
	name, size, err := s.header()
	if err != nil {
		return err
	}
	if name != format.IndexName || size > format.MaxIndexSize {
		return format.Damage(0, "beginning: the tar's second entry is not %s", format.IndexName)
	}
	data, err := s.own(size)
	if err != nil {
		return err
	}
	s.indexSize = size
	if s.index, err = ParseIndex(data); err != nil {
		return format.Damage(s.in.Frames[1].Off, "its index: %v", err)
	}
	s.identity = digest.FromBytes(data)
	if s.docs, err = newDocuments(s.index.Items); err != nil {
		return format.Damage(s.in.Frames[1].Off, "its index: %v", err)
	}
	return nil
}

// own reads a JSON document, which has its own frame.
func (s *Stream) own(size int64) ([]byte, error) {
	if s.at != len(s.glue) {
		return nil, format.Damage(s.in.Off, "data between an entry's header and its content")
	}
	raw, f, err := s.in.Next(nil, size)
	if err != nil {
		return nil, err
	}
	data, err := format.DecodeFrame(s.dec, raw, nil, size)
	if err != nil {
		return nil, &DamageError{Offset: f.Off, Reason: "a frame is bad", Err: err}
	}
	s.pad = int(format.Padded(size) - size)
	return data, nil
}

// nextGlue reads a glue frame and the padding at its start.
func (s *Stream) nextGlue() error {
	raw, f, err := s.in.Next(s.frame, format.MaxGlue)
	s.frame = raw
	if err != nil {
		return err
	}
	if s.glue, err = format.DecodeFrame(s.dec, raw, s.glue, int64(f.Size)); err != nil {
		return &DamageError{
			Offset: f.Off,
			Reason: "a frame with tar entries is damaged, so the rest of the pipe cannot be read", Err: err,
		}
	}
	if len(s.glue) < s.pad {
		return format.Damage(f.Off, "the padding in the tar is truncated")
	}
	s.zeros(s.glue[:s.pad])
	s.at, s.pad = s.pad, 0
	return nil
}

func (s *Stream) zeros(b []byte) {
	if len(bytes.Trim(b, "\x00")) > 0 {
		s.found.addOther(format.Damage(s.glueOffset(), "the padding in the tar has bytes other than zero"))
	}
}

func (s *Stream) glueFrame() int    { return len(s.in.Frames) - 1 }
func (s *Stream) glueOffset() int64 { return s.in.Frames[s.glueFrame()].Off }

// header reads the next entry's header.
func (s *Stream) header() (name string, size int64, err error) {
	if s.at == len(s.glue) {
		if err := s.nextGlue(); err != nil {
			return "", 0, err
		}
	}
	name, size, n, err := format.ReadTarHeader(s.glue[s.at:])
	if err != nil {
		return "", 0, &DamageError{Offset: s.glueOffset(), Reason: fmt.Sprintf("frame %d", s.glueFrame()), Err: err}
	}
	s.at += n
	return name, size, nil
}

// next reads up to the content of the next blob. After the last blob it reads and compares the rest, and returns nil.
func (s *Stream) next() (*entry, error) {
	if e := s.first; e != nil {
		s.first = nil
		return e, nil
	}
	if s.ended {
		return nil, nil
	}
	name, size, err := s.header()
	if err != nil {
		return nil, err
	}
	if name == format.DirectoryName {
		s.ended = true
		return nil, s.end(size)
	}
	text, ok := strings.CutPrefix(name, format.BlobPrefix)
	id, err := format.ParseHex(text)
	if !ok || err != nil {
		return nil, format.Damage(s.glueOffset(), "the tar has an entry that is not allowed in bundles")
	}
	e := &entry{Blob: format.Blob{Sum: id, Size: size}}
	if len(s.blobs) > format.MaxIndexSize/format.MinBlobRecord {
		return nil, format.Damage(s.glueOffset(), "there are more blobs than a directory can have")
	}
	if !e.Small() {
		if s.at != len(s.glue) {
			return nil, format.Damage(s.in.Off, "data between an entry's header and its content")
		}
		e.Frame = uint32(len(s.in.Frames))
	} else if err := s.small(e); err != nil {
		return nil, err
	}
	s.blobs, s.sizes[id] = append(s.blobs, e.Blob), size
	return e, nil
}

// small takes the content of a small blob from the glue.
func (s *Stream) small(e *entry) error {
	end := s.at + int(format.Padded(e.Size))
	if end > len(s.glue) {
		return format.Damage(s.glueOffset(), "the content of blob %s is truncated", e.Sum.Digest())
	}
	e.Place = format.Place{Frame: uint32(s.glueFrame()), At: uint32(s.at)}
	e.content = bytes.Clone(s.glue[s.at : s.at+int(e.Size)])
	s.zeros(s.glue[s.at+int(e.Size) : end])
	s.at = end
	return nil
}

// document keeps a blob that may be an index or manifest.
func (s *Stream) document(ctx context.Context, e *entry) error {
	var data []byte
	b := s.newBlob(e)
	done := make(chan error, 1)
	go func() { done <- s.send(ctx, e, b) }()
	err := b.Copy(ctx, func(p []byte) error { data = append(data, p...); return nil })
	if sendErr := <-done; sendErr != nil {
		return sendErr
	}
	if err != nil {
		s.found.add(e.Sum, asDamage(err, s.in.Frames[e.Frame].Off))
		data = nil
	} else if data == nil {
		data = []byte{}
	}
	return s.docs.arrived(e.Sum, data)
}

// A StreamBlob is a blob read from a Stream.
type StreamBlob struct {
	Digest digest.Digest
	Size   int64

	sum    format.Sum
	pieces chan *piece   // closed after the last
	quit   chan struct{} // closed when the handler wants no more
	ended  error         // the reason that pieces end; set before pieces is closed
	hash   hash.Hash
	at     int64
	s      *Stream
}

// A piece is one frame of a blob in transit.
type piece struct {
	raw     []byte
	content []byte
	info    format.FrameInfo
	err     error
	done    chan struct{} // closed when content or err is there
	free    bool          // without a token
}

func (s *Stream) newBlob(e *entry) *StreamBlob {
	return &StreamBlob{
		Digest: e.Sum.Digest(), Size: e.Size, sum: e.Sum, hash: sha256.New(), s: s,
		pieces: make(chan *piece, cap(s.tokens)+1), quit: make(chan struct{}),
	}
}

// Copy passes the content to f, in pieces of at most 8 MiB, each valid until f returns. The last piece follows only
// after the whole blob matched its digest; on a mismatch, the error matches ErrDamaged instead. An error of f ends
// Copy, and so does the end of ctx. It can be called once.
func (b *StreamBlob) Copy(ctx context.Context, f func(piece []byte) error) error {
	for {
		p, err := b.next(ctx)
		if err != nil {
			return err
		}
		if p == nil {
			break
		}
		err = b.take(p, f)
		b.s.release(p)
		if err != nil {
			return err
		}
	}
	if b.ended != nil {
		return fmt.Errorf("%w: %w", errCut, b.ended)
	}
	if b.Size == 0 && format.Sum(b.hash.Sum(nil)) != b.sum {
		return b.wrong(-1)
	}
	return nil
}

// next waits for a piece; nil follows the last.
func (b *StreamBlob) next(ctx context.Context) (*piece, error) {
	select {
	case p := <-b.pieces:
		return p, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (b *StreamBlob) wrong(off int64) error {
	return &DamageError{Blob: b.Digest, Offset: off, Reason: "content has digest " +
		string(format.Sum(b.hash.Sum(nil)).Digest())}
}

func (b *StreamBlob) take(p *piece, f func(piece []byte) error) error {
	<-p.done
	if p.err != nil {
		return &DamageError{Blob: b.Digest, Offset: p.info.Off, Reason: "a frame is bad", Err: p.err}
	}
	b.hash.Write(p.content)
	if b.at += int64(len(p.content)); b.at == b.Size && format.Sum(b.hash.Sum(nil)) != b.sum {
		return b.wrong(p.info.Off)
	}
	return f(p.content)
}

// send reads a blob's frames and passes them to b until the handler wants no more. Its error is one of the stream.
func (s *Stream) send(ctx context.Context, e *entry, b *StreamBlob) (err error) {
	defer func() { b.ended = err; close(b.pieces) }()
	if e.Small() {
		if e.Size > 0 {
			p := &piece{content: e.content, info: s.in.Frames[e.Frame], done: make(chan struct{}), free: true}
			close(p.done)
			b.pieces <- p // never blocks
		}
		return nil
	}
	for rest := e.Size; rest > 0; {
		p, err := s.piece(ctx, min(rest, format.MaxFrameSize))
		if err != nil {
			return err
		}
		rest -= int64(p.info.Size)
		select {
		case <-b.quit:
			s.release(p)
			continue
		default:
		}
		go func() {
			p.content, p.err = format.DecodeFrame(s.dec, p.raw, p.content, int64(p.info.Size))
			close(p.done)
		}()
		b.pieces <- p // never blocks: there is a place for every token
	}
	s.pad = int(format.Padded(e.Size) - e.Size)
	return nil
}

// piece reads the next frame when memory is available.
func (s *Stream) piece(ctx context.Context, most int64) (*piece, error) {
	select {
	case s.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p := s.pieces.Get().(*piece)
	p.done, p.err = make(chan struct{}), nil
	var err error
	if p.raw, p.info, err = s.in.Next(p.raw, most); err != nil {
		s.release(p)
		return nil, err
	}
	return p, nil
}

func (s *Stream) release(p *piece) {
	if p.free {
		return
	}
	s.pieces.Put(p)
	<-s.tokens
}

// Blobs calls handle for every blob that is no index or manifest, in the order of the stream, several at a time, each
// in its own goroutine. A handler need not read its blob to the end. When all have returned, Blobs reads the end of the
// stream and compares it with the blobs received.
//
// An error of handle or the end of ctx ends it. Damage gives one error per blob or place, each matching ErrDamaged:
// everything that Reader.Verify would find, except in blobs that their handlers did not read to the end.
func (s *Stream) Blobs(ctx context.Context, handle func(ctx context.Context, b *StreamBlob) error) error {
	if err := s.each(ctx, handle); err != nil {
		return err
	}
	_, err := s.report(ctx)
	return err
}

// each hands on all blobs. An early end of the stream is in s.found, unless ctx or handle caused it.
func (s *Stream) each(ctx context.Context, handle func(ctx context.Context, b *StreamBlob) error) error {
	defer s.cancel(nil)
	group, inner := errgroup.WithContext(ctx)
	slots := make(chan struct{}, s.jobs)
	err := func() error {
		for {
			e, err := s.next()
			if err != nil || e == nil {
				return err
			}
			select {
			case slots <- struct{}{}:
			case <-inner.Done():
				return context.Cause(inner)
			}
			b := s.newBlob(e)
			group.Go(func() error {
				err := handle(inner, b)
				if err != nil {
					s.cancel(err) // unblocks a stream waiting for input
				}
				<-slots
				close(b.quit)
				for p := range b.pieces {
					<-p.done
					s.release(p)
				}
				return err
			})
			if err := s.send(inner, e, b); err != nil {
				return err
			}
		}
	}()
	if handled := group.Wait(); handled != nil {
		return handled
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.note(err)
}

// note records damage for the report. It returns any other error.
func (s *Stream) note(err error) error {
	if d, ok := errors.AsType[*DamageError](err); ok && !errors.Is(err, ErrUnsupported) {
		s.cut = s.cut || !s.ended
		s.found.addOther(d)
		return nil
	}
	return err
}

// end reads the directory, the end of the tar and the seek table, and compares them with the blobs received.
func (s *Stream) end(size int64) error {
	if size > format.MaxIndexSize {
		return format.Damage(s.glueOffset(), "the directory has %d bytes", size)
	}
	data, err := s.own(size)
	if err != nil {
		return err
	}
	off := s.in.Frames[s.glueFrame()].Off
	dir, err := format.ParseDirectory(data)
	if errors.Is(err, ErrUnsupported) {
		return err
	}
	if err != nil {
		return &DamageError{Offset: off, Reason: "its directory", Err: err}
	}
	if err := s.nextGlue(); err != nil {
		return err
	}
	if len(s.glue)-s.at != format.TarEnding {
		return format.Damage(s.glueOffset(), "the end of the tar has a wrong length")
	}
	s.zeros(s.glue[s.at:])
	if err := s.in.End(); err != nil {
		return err
	}
	return s.compare(dir, int64(len(data)), off)
}

// compare checks that the directory lists the received blobs, in frames cut as the format requires.
func (s *Stream) compare(dir *format.Directory, size, off int64) error {
	came := slices.Clone(s.blobs)
	slices.SortFunc(came, func(a, b format.Blob) int { return format.CompareSums(a.Sum, b.Sum) })
	if !slices.Equal(came, dir.Blobs) {
		return format.Damage(off, "the directory does not match the tar's entries")
	}
	l := format.Layout{
		FrameSize: dir.FrameSize, IndexSize: s.indexSize, DirectorySize: size,
		Blobs: slices.Clone(s.blobs),
	}
	if err := format.CheckFrames(&l, s.in.Frames); err != nil {
		return err
	}
	l.Put()
	if !slices.Equal(l.Blobs, s.blobs) {
		return format.Damage(off, "the positions of the blobs deviate from the format")
	}
	return nil
}

// report returns the damage found, after each.
func (s *Stream) report(ctx context.Context) (Report, error) {
	came := slices.Clone(s.blobs)
	slices.SortFunc(came, func(a, b format.Blob) int { return format.CompareSums(a.Sum, b.Sum) })
	v := s.found
	v.r = &Reader{
		Catalog: Catalog{index: s.index, identity: s.identity}, size: s.in.Off, frames: s.in.Frames,
		directory: directory{&format.Directory{Blobs: came}}, layout: format.Layout{Blobs: s.blobs},
	}
	v.src = streamSource{s.docs.held, s.sizes}
	if err := v.references(ctx, s.cut); err != nil {
		return Report{}, err
	}
	return v.report()
}

// VerifyStream is Reader.Verify for a bundle from a pipe, in one pass, see Stream. Progress counts bytes of content;
// the total is known once all manifests were read.
func VerifyStream(ctx context.Context, src io.Reader, o VerifyOptions) (Report, error) {
	s, err := NewStream(ctx, src, o.Jobs)
	if err == nil {
		err = o.accept(s.index)
	}
	if err != nil {
		return Report{}, err
	}
	var mu sync.Mutex
	var done int64
	progress := func(piece []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if done += int64(len(piece)); o.Progress != nil {
			o.Progress(done, s.docs.contents)
		}
		return nil
	}
	err = s.each(ctx, func(ctx context.Context, b *StreamBlob) error {
		if err := b.Copy(ctx, progress); err != nil && !errors.Is(err, errCut) {
			s.found.add(b.sum, asDamage(err, -1))
		}
		return nil
	})
	if err != nil {
		return Report{}, err
	}
	return s.report(ctx)
}
