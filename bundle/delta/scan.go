package delta

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"path"
	"strings"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/regzip"
)

// A piece is a file of an archive, the frame of one, or a whole blob that is no archive.
type piece struct {
	sum  [sha256.Size]byte
	size int64
	in   *spool // holds its bytes while the delta is made
	at   int64
	name string // pieces with equal or similar names are compared
	blob int    // number of the scanned blob that has it
	from []span // its ranges there, if that blob is of OLD

	used    bool  // of OLD: it goes into the store
	address int64 // in the store
}

// A layer is a scanned blob.
type layer struct {
	ocispec.Descriptor
	gzip   bool // it begins like a gzip stream
	unzip  bool // the content of its gzip stream is scanned
	recipe regzip.Recipe
	frame  *piece
	files  []placed
}

// placed is a file's place in an archive.
type placed struct {
	gap  int64 // bytes of the frame before it
	file *piece
}

// A scan reads blobs and keeps each content once.
type scan struct {
	bundle *bundle.Reader
	known  map[[sha256.Size]byte]*piece // by content; shared by OLD's scan and NEW's
	ranges bool                         // keep where pieces lie
	files  *spool
	frames *spool
	layers []*layer
	pieces []*piece // new to known, in the order found
}

func newScan(r *bundle.Reader, dir string, known map[[sha256.Size]byte]*piece, ranges bool) (*scan, error) {
	files, err := newSpool(dir)
	if err != nil {
		return nil, err
	}
	frames, err := newSpool(dir)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &scan{bundle: r, known: known, ranges: ranges, files: files, frames: frames}, nil
}

// Close frees the temporary files.
func (s *scan) Close() error { return errors.Join(s.files.Close(), s.frames.Close()) }

// add scans a blob. With unzip, the content of its gzip stream is scanned.
func (s *scan) add(ctx context.Context, l *layer, name string) error {
	rc, err := openBlob(ctx, s.bundle, l.Digest)
	if err != nil {
		return err
	}
	src := io.Reader(rc)
	if l.unzip {
		src, err = kgzip.NewReader(bufio.NewReaderSize(rc, 64<<10))
	}
	before := len(s.pieces)
	w := &walker{scan: s, blob: len(s.layers), frame: newMeasure(s.frames)}
	if err == nil {
		w.in = bufio.NewReaderSize(src, 128<<10)
		err = w.walk(ctx, l)
	}
	if err := errors.Join(err, rc.Close()); err != nil {
		for _, p := range s.pieces[before:] {
			delete(s.known, p.sum)
		}
		s.pieces = s.pieces[:before]
		s.frames.truncate(w.frame.at)
		return err
	}
	l.frame = s.keep(w.frame, name, w.blob)
	s.layers = append(s.layers, l)
	return nil
}

// keep returns a piece with the measured content. Content that is known already is dropped from the spool.
func (s *scan) keep(m *measure, name string, blob int) *piece {
	p := &piece{size: m.spool.size - m.at, in: m.spool, at: m.at, name: name, blob: blob, from: m.ranges, address: -1}
	m.sum.Sum(p.sum[:0])
	if same, ok := s.known[p.sum]; ok {
		m.spool.truncate(m.at)
		return same
	}
	s.known[p.sum] = p
	s.pieces = append(s.pieces, p)
	return p
}

// A measure takes the bytes of one piece.
type measure struct {
	spool  *spool
	at     int64
	sum    hash.Hash
	ranges []span
}

func newMeasure(s *spool) *measure { return &measure{spool: s, at: s.size, sum: sha256.New()} }

// add adds bytes that lie at an offset of the blob.
func (m *measure) add(p []byte, offset int64, ranges bool) error {
	if len(p) == 0 {
		return nil
	}
	m.sum.Write(p)
	if last := len(m.ranges) - 1; ranges && last >= 0 && m.ranges[last].at+m.ranges[last].size == offset {
		m.ranges[last].size += int64(len(p))
	} else if ranges {
		m.ranges = append(m.ranges, span{offset, int64(len(p))})
	}
	_, err := m.spool.Write(p)
	return err
}

// A walker reads an archive and tells the bytes of its files from all others.
type walker struct {
	*scan
	in     io.Reader
	offset int64
	blob   int
	frame  *measure
	file   *measure // nil between files
	failed error    // of the spool
}

// Read is called by the reader of the archive, which never reads ahead.
func (w *walker) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	to := w.frame
	if w.file != nil {
		to = w.file
	}
	if err := to.add(p[:n], w.offset, w.ranges); err != nil {
		w.failed = err
		return 0, err
	}
	w.offset += int64(n)
	return n, err
}

// walk reads the whole blob. Whatever is not a file of an archive belongs to the frame.
func (w *walker) walk(ctx context.Context, l *layer) error {
	archive, before := tar.NewReader(w), w.frame.spool.size
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		if err != nil {
			break // the end, or no archive
		}
		if h.Typeflag != tar.TypeReg || h.Size == 0 || sparse(h) {
			continue
		}
		gap := w.frame.spool.size - before
		before += gap
		w.file = newMeasure(w.files)
		_, err = io.Copy(io.Discard, archive)
		l.files = append(l.files, placed{gap, w.keep(w.file, "file "+path.Clean("/"+h.Name), w.blob)})
		w.file = nil
		if err != nil {
			break
		}
	}
	if w.failed == nil {
		_, err := io.Copy(io.Discard, onlyReader{w})
		w.failed = errors.Join(w.failed, err)
	}
	return w.failed
}

type onlyReader struct{ io.Reader }

// sparse reports whether the archive does not have the bytes of a file as they are.
func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// gzipped reports whether a blob begins like a gzip stream.
func gzipped(ctx context.Context, r *bundle.Reader, d digest.Digest) (bool, error) {
	return regzip.IsGzip(func() (io.ReadCloser, error) { return r.Unhashed(ctx, d, 0) })
}
