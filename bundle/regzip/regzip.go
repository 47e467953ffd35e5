package regzip

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	kflate "github.com/klauspost/compress/flate"
)

// A Recipe makes a gzip stream from its content.
type Recipe struct {
	Encoder ID
	Header  []byte // the stream's header, as it is
}

const (
	headerSize  = 10
	maxHeader   = 64 << 10
	trialPrefix = 1 << 20 // bytes of content that choose the candidates
)

// errDiffers means that an encoder made other bytes than the stream has.
var errDiffers = errors.New("the encoder makes other bytes")

// Identify returns the recipe of the gzip stream that open returns, and the size of its content. It returns false if
// no known encoder makes this stream, or if the stream is damaged. The answer is proved: the whole stream was made
// again and compared. Memory does not depend on the stream's size.
func Identify(ctx context.Context, open func() (io.ReadCloser, error)) (r Recipe, size int64, ok bool, err error) {
	header, candidates, err := choose(open)
	if err != nil || len(candidates) == 0 {
		return Recipe{}, 0, false, err
	}
	for _, e := range candidates {
		size, err := prove(ctx, open, e, header)
		switch {
		case err == nil:
			return Recipe{Encoder: e.id, Header: header}, size, true, nil
		case errors.Is(err, errDiffers):
		case isFormat(err):
			return Recipe{}, 0, false, nil
		default:
			return Recipe{}, 0, false, err
		}
	}
	return Recipe{}, 0, false, nil
}

// Confirm is Identify for a stream whose encoder is supposed to be id. It returns false if that encoder makes other
// bytes, or is unknown.
func Confirm(ctx context.Context, id ID, open func() (io.ReadCloser, error)) (r Recipe, ok bool, err error) {
	e, ok := find(id)
	if !ok {
		return Recipe{}, false, nil
	}
	src, err := open()
	if err != nil {
		return Recipe{}, false, err
	}
	header, err := readHeader(bufio.NewReader(src))
	if err = errors.Join(err, src.Close()); err == nil {
		_, err = prove(ctx, open, e, header)
	}
	switch {
	case err == nil:
		return Recipe{Encoder: id, Header: header}, true, nil
	case errors.Is(err, errDiffers), isFormat(err):
		return Recipe{}, false, nil
	}
	return Recipe{}, false, err
}

// IsGzip reports whether the stream that open returns begins like a gzip stream.
func IsGzip(open func() (io.ReadCloser, error)) (bool, error) {
	src, err := open()
	if err != nil {
		return false, err
	}
	begin := make([]byte, 3)
	_, err = io.ReadFull(src, begin)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return bytes.Equal(begin, []byte{0x1f, 0x8b, 8}), errors.Join(err, src.Close())
}

// choose returns the header and the encoders that make the stream's beginning.
func choose(open func() (io.ReadCloser, error)) (header []byte, fit []encoder, err error) {
	src, err := open()
	if err != nil {
		return nil, nil, err
	}
	defer src.Close()
	prefix, err := io.ReadAll(io.LimitReader(src, 2*trialPrefix))
	if err != nil {
		return nil, nil, err
	}
	whole := len(prefix) < 2*trialPrefix
	header, err = readHeader(bufio.NewReader(bytes.NewReader(prefix)))
	if err != nil {
		return nil, nil, nil
	}
	packed := prefix[len(header):]
	raw, err := io.ReadAll(io.LimitReader(kflate.NewReader(bytes.NewReader(packed)), trialPrefix))
	if err != nil && (whole || !errors.Is(err, io.ErrUnexpectedEOF)) {
		return nil, nil, nil
	}
	for _, e := range encoders(header) {
		c := &comparer{want: bytes.NewReader(packed), short: true}
		w, err := e.new(c)
		if err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(raw); err == nil {
			fit = append(fit, e)
		} else if !errors.Is(err, errDiffers) {
			return nil, nil, err
		}
	}
	return header, fit, nil
}

// prove makes the whole stream with an encoder and compares. It returns the content's size.
func prove(ctx context.Context, open func() (io.ReadCloser, error), e encoder, header []byte) (size int64, err error) {
	src, err := open()
	if err != nil {
		return 0, err
	}
	defer src.Close()
	reference, err := open()
	if err != nil {
		return 0, err
	}
	defer reference.Close()
	in := bufio.NewReaderSize(src, 64<<10)
	if _, err := readHeader(in); err != nil {
		return 0, err
	}
	compare := &comparer{want: bufio.NewReaderSize(reference, 64<<10)}
	w, err := (Recipe{Encoder: e.id, Header: header}).NewWriter(compare)
	if err != nil {
		return 0, err
	}
	size, err = io.CopyBuffer(w, onlyReader{&contextReader{ctx, kflate.NewReader(in)}}, make([]byte, 64<<10))
	if err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	return size, compare.end()
}

// NewWriter returns a writer that writes the gzip stream of the content written to it. Close ends the stream; it does
// not close w.
func (r Recipe) NewWriter(w io.Writer) (io.WriteCloser, error) {
	e, ok := find(r.Encoder)
	if !ok {
		return nil, fmt.Errorf("gzip encoder %q is unknown to this kkbundle", r.Encoder)
	}
	h, err := readHeader(bufio.NewReader(bytes.NewReader(r.Header)))
	if err != nil || len(h) != len(r.Header) {
		return nil, errors.New("the recorded gzip header is not one")
	}
	if _, err := w.Write(r.Header); err != nil {
		return nil, err
	}
	packer, err := e.new(w)
	if err != nil {
		return nil, err
	}
	return &writer{packer: packer, out: w, sum: crc32.NewIEEE()}, nil
}

type writer struct {
	packer io.WriteCloser
	out    io.Writer
	sum    hash.Hash32
	size   uint32
}

// Write compresses p.
func (w *writer) Write(p []byte) (int, error) {
	_, _ = w.sum.Write(p) // never fails
	w.size += uint32(len(p))
	return w.packer.Write(p)
}

// Close writes the rest of the stream and its trailer.
func (w *writer) Close() error {
	if err := w.packer.Close(); err != nil {
		return err
	}
	trailer := binary.LittleEndian.AppendUint32(nil, w.sum.Sum32())
	_, err := w.out.Write(binary.LittleEndian.AppendUint32(trailer, w.size))
	return err
}

// A comparer compares the bytes that are written to it with a stream.
type comparer struct {
	want  io.Reader
	short bool // want may end before the stream does
	buf   []byte
}

// Write returns errDiffers at the first difference.
func (c *comparer) Write(p []byte) (int, error) {
	if len(c.buf) < len(p) {
		c.buf = make([]byte, len(p))
	}
	n, err := io.ReadFull(c.want, c.buf[:len(p)])
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case err != nil && !ended:
		return 0, err
	case !bytes.Equal(c.buf[:n], p[:n]), ended && !c.short:
		return 0, errDiffers
	}
	return len(p), nil
}

// end returns errDiffers unless the stream ends here.
func (c *comparer) end() error {
	n, err := io.ReadFull(c.want, make([]byte, 1))
	if n > 0 {
		return errDiffers
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// readHeader reads the header of a gzip member.
func readHeader(r *bufio.Reader) ([]byte, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, formatError(err)
	}
	const deflate, fhcrc, fextra, fname, fcomment, reserved = 8, 2, 4, 8, 16, 0xe0
	flags := header[3]
	if header[0] != 0x1f || header[1] != 0x8b || header[2] != deflate || flags&reserved != 0 {
		return nil, gzip.ErrHeader
	}
	take := func(n int) error {
		at := len(header)
		header = append(header, make([]byte, n)...)
		_, err := io.ReadFull(r, header[at:])
		return formatError(err)
	}
	if flags&fextra != 0 {
		if err := take(2); err != nil {
			return nil, err
		}
		if err := take(int(binary.LittleEndian.Uint16(header[headerSize:]))); err != nil {
			return nil, err
		}
	}
	for _, text := range []byte{fname, fcomment} {
		for flags&text != 0 {
			if err := take(1); err != nil {
				return nil, err
			}
			if header[len(header)-1] == 0 {
				break
			}
			if len(header) > maxHeader*2 {
				return nil, gzip.ErrHeader
			}
		}
	}
	if flags&fhcrc != 0 {
		if err := take(2); err != nil {
			return nil, err
		}
	}
	return header, nil
}

// formatError makes the early end of a stream an error about the stream.
func formatError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return gzip.ErrHeader
	}
	return err
}

// isFormat reports whether err is about the bytes of a gzip stream, not about reading them.
func isFormat(err error) bool {
	var corrupt kflate.CorruptInputError
	return errors.Is(err, gzip.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt)
}

// A contextReader ends with its context.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one call
	r   io.Reader
}

// Read returns the context's error once it has ended.
func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// onlyReader hides all methods but Read.
type onlyReader struct{ io.Reader }
