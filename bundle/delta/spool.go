package delta

import (
	"fmt"
	"io"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// NewSpool returns a temporary file in a directory. It has no name.
func NewSpool(dir string) (bundle.Spool, error) { return newSpool(dir) }

// A spool is a temporary file without a name, so that nothing is left of it if the process is killed.
type spool struct {
	f    *os.File
	dir  string
	size int64
}

func newSpool(dir string) (*spool, error) {
	f, err := os.CreateTemp(dir, ".kkbundle-delta-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("make temporary space: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // report the first error
		return nil, fmt.Errorf("make temporary space: %w", err)
	}
	return &spool{f: f, dir: dir}, nil
}

// Write appends p.
func (s *spool) Write(p []byte) (int, error) {
	n, err := s.WriteAt(p, s.size)
	s.size += int64(n)
	return n, err
}

// WriteAt writes p at an offset.
func (s *spool) WriteAt(p []byte, at int64) (int, error) {
	n, err := s.f.WriteAt(p, at)
	if full := cache.NewFullError(s.dir, err); full != nil {
		return n, full
	}
	if err != nil {
		return n, fmt.Errorf("temporary file in %s: %w", s.dir, err)
	}
	return n, nil
}

// ReadAt reads from an offset.
func (s *spool) ReadAt(p []byte, at int64) (int, error) { return s.f.ReadAt(p, at) }

// truncate drops everything from an offset on. The bytes are overwritten by the next Write.
func (s *spool) truncate(at int64) { s.size = at }

// copyTo writes a range to w.
func (s *spool) copyTo(w io.Writer, r span, buf []byte) error {
	for r.size > 0 {
		n, err := s.f.ReadAt(buf[:min(int64(len(buf)), r.size)], r.at)
		if n == 0 && err != nil {
			return fmt.Errorf("temporary file in %s: %w", s.dir, err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		r.at += int64(n)
		r.size -= int64(n)
	}
	return nil
}

// Close frees the space.
func (s *spool) Close() error { return s.f.Close() }
