package format

import (
	"errors"
	"io"
	"os"
)

// A PieceReader turns a function that returns one piece after the other, then io.EOF, into a stream.
type PieceReader struct {
	Load func() ([]byte, error)
	End  func() error // ends the stream; may be nil
	rest []byte
	err  error // the first error; repeated by later reads
}

func (r *PieceReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		r.rest, r.err = r.Load()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo, so that io.Copy needs no buffer of its own.
func (r *PieceReader) WriteTo(w io.Writer) (total int64, err error) {
	for {
		for len(r.rest) == 0 && r.err == nil {
			r.rest, r.err = r.Load()
		}
		if len(r.rest) == 0 {
			if errors.Is(r.err, io.EOF) {
				return total, nil
			}
			return total, r.err
		}
		n, err := w.Write(r.rest)
		r.rest, total = r.rest[n:], total+int64(n)
		if err != nil {
			return total, err
		}
	}
}

// Close ends the stream; a second call does nothing.
func (r *PieceReader) Close() error {
	r.rest, r.err = nil, os.ErrClosed
	if r.End == nil {
		return nil
	}
	end := r.End
	r.End = nil
	return end()
}
