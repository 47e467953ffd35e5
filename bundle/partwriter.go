package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// createParts writes the bundle as path.001, path.002 and so on, and path.parts.json. Everything is first written under
// other names in the same directory and synced. Then parts.json of an older bundle in parts is removed, the parts get
// their names, surplus older parts are removed, and parts.json comes last. If parts.json exists, all parts exist.
func createParts(ctx context.Context, path string, src Source, x Index, o WriteOptions) (s Summary, err error) {
	if err := parts.CheckTarget(path, true); err != nil {
		return Summary{}, err
	}
	p, err := newPlan(ctx, src, x)
	if err != nil {
		return Summary{}, err
	}
	most, err := p.most(ctx, src)
	if err != nil {
		return Summary{}, err
	}
	w, err := newPartWriter(path, o.PartSize, o.most(most))
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if s, err = p.write(ctx, w, src, o); err != nil {
		return Summary{}, err
	}
	s.Parts = len(w.temps)
	return s, w.commit()
}

// A partWriter cuts its input into files.
type partWriter struct {
	base  string
	size  int64 // size of each part but the last
	temps []*os.File
	list  parts.List // the full files of temps
	room  int64      // free space in the last of temps
	hash  hash.Hash
}

// newPartWriter removes the files of a killed run and refuses sizes that would need too many parts.
func newPartWriter(base string, size, most int64) (*partWriter, error) {
	if count := (most-1)/size + 1; count > parts.Max {
		const unit = 1 << 20
		enough := ((most-1)/parts.Max/unit + 1) * unit
		return nil, fmt.Errorf("up to %d parts of %d bytes would be needed, and at most %d are allowed: use parts of at least %dMiB", count, size, parts.Max, enough/unit)
	}
	if err := sweepTemps(base); err != nil {
		return nil, err
	}
	return &partWriter{base: base, size: size, hash: sha256.New()}, nil
}

// Write implements io.Writer.
func (w *partWriter) Write(b []byte) (total int, err error) {
	for len(b) > 0 {
		if w.room == 0 {
			if err := w.next(); err != nil {
				return total, err
			}
		}
		n, err := w.temps[len(w.temps)-1].Write(b[:min(int64(len(b)), w.room)])
		w.hash.Write(b[:n])
		w.room -= int64(n)
		total, b = total+n, b[n:]
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// next begins another part. All parts stay open, and thus locked, until they have their names.
func (w *partWriter) next() error {
	if err := w.end(); err != nil {
		return err
	}
	if len(w.temps) == parts.Max {
		return fmt.Errorf("more than %d parts would be needed: use larger parts", parts.Max)
	}
	f, err := createTempFile(parts.Name(w.base, len(w.temps)+1))
	if err != nil {
		return err
	}
	w.temps, w.room = append(w.temps, f), w.size
	return nil
}

// end completes the last part.
func (w *partWriter) end() error {
	if len(w.temps) == len(w.list) {
		return nil
	}
	w.list = append(w.list, parts.Info{Size: w.size - w.room, Sum: format.Sum(w.hash.Sum(nil))})
	w.hash.Reset()
	return w.temps[len(w.temps)-1].Sync()
}

// commit gives every file its name.
func (w *partWriter) commit() error {
	if err := w.end(); err != nil {
		return err
	}
	dir := filepath.Dir(w.base)
	if err := os.Remove(w.base + parts.ListSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.SyncDir(dir); err != nil {
		return err
	}
	for i, f := range w.temps {
		if err := os.Rename(f.Name(), parts.Name(w.base, i+1)); err != nil {
			return err
		}
	}
	if err := w.removeSurplus(); err != nil {
		return err
	}
	if err := disk.SyncDir(dir); err != nil {
		return err
	}
	return w.writeList()
}

// removeSurplus removes the surplus parts of a larger, older bundle.
func (w *partWriter) removeSurplus() error {
	last, err := parts.Last(w.base)
	if err != nil {
		return err
	}
	for i := len(w.temps) + 1; i <= last; i++ {
		if err := os.Remove(parts.Name(w.base, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (w *partWriter) writeList() error {
	f, err := createTempFile(w.base + parts.ListSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(w.list.Marshal())
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), w.base+parts.ListSuffix)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return errors.Join(f.Close(), disk.SyncDir(filepath.Dir(w.base)))
}

// close removes the files without a final name.
func (w *partWriter) close() error {
	var errs []error
	for _, f := range w.temps {
		if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
