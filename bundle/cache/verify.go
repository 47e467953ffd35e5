package cache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// VerifyOptions configure a cache check. The zero value checks every blob's checksum and drops damaged blobs.
type VerifyOptions struct {
	Deep     bool // also decode every blob and compare its digest; takes as long as verifying a bundle of all blobs
	DryRun   bool // keep damaged blobs
	Progress func(done, total int64)
}

// A Report is the result of a cache check.
type Report struct {
	Checked int           // blobs
	Bytes   int64         // disk usage of the checked blobs
	Skipped int           // blobs of other versions
	Damaged []*EntryError // sorted by path
}

// Verify reads every blob of this version's levels. Damaged blobs are dropped, so that the next build fetches them
// again. Parts are not read, because resuming one checks it. The error says why the check could not be completed.
func (d Dir) Verify(ctx context.Context, o VerifyOptions) (Report, error) {
	dec, err := format.NewDecoder(runtime.GOMAXPROCS(0))
	if err != nil {
		return Report{}, err
	}
	if _, err := os.Stat(d.root); err == nil {
		if err := checkOwn(d.root); err != nil {
			return Report{}, err
		}
	}
	v := &verification{Dir: d, VerifyOptions: o, dec: dec}
	if o.Progress != nil {
		for f, err := range d.Files(ctx) {
			if err != nil {
				return Report{}, err
			}
			if f.Kind == Blob && f.Level != "" {
				v.total += f.Disk
			}
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for f, err := range d.Files(groupCtx) {
		switch {
		case err != nil:
			return v.report, errors.Join(group.Wait(), err)
		case f.Kind != Blob:
		case f.Level == "":
			v.skip()
		default:
			group.Go(func() error { return v.check(groupCtx, f) })
		}
	}
	if err := group.Wait(); err != nil {
		return v.report, fmt.Errorf("verify the cache: %w", err)
	}
	slices.SortFunc(v.report.Damaged, func(a, b *EntryError) int { return cmp.Compare(a.Path, b.Path) })
	return v.report, nil
}

// verification is the state of one Verify.
type verification struct {
	Dir
	VerifyOptions
	dec     *zstd.Decoder
	buffers sync.Pool
	total   int64

	mu     sync.Mutex
	report Report
}

func (v *verification) skip() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Skipped++
}

func (v *verification) check(ctx context.Context, f File) error {
	err := v.read(ctx, f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	var damaged *EntryError
	if err != nil && !errors.As(err, &damaged) {
		return err
	}
	if damaged != nil && !v.DryRun {
		if err := damaged.drop(); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Checked++
	v.report.Bytes += f.Disk
	if damaged != nil {
		v.report.Damaged = append(v.report.Damaged, damaged)
	}
	if v.Progress != nil {
		v.Progress(v.report.Bytes, v.total)
	}
	return nil
}

// read reads one blob: its frames to check the checksum or, for a deep check, also its content to compare the digest.
func (v *verification) read(ctx context.Context, f File) error {
	e, err := v.entry(f)
	if err != nil {
		return err
	}
	if !v.Deep {
		buf, ok := v.buffers.Get().(*[]byte)
		if !ok {
			buf = new([]byte)
			*buf = make([]byte, 1<<20)
		}
		defer v.buffers.Put(buf)
		return errors.Join(e.CopyTo(ctx, io.Discard, *buf), e.Close())
	}
	h, r := sha256.New(), e.stream(ctx, v.dec)
	_, err = io.Copy(h, r)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if got := format.Sum(h.Sum(nil)); got != e.sum {
		return e.damaged("content has digest %s", got.Digest())
	}
	return nil
}
