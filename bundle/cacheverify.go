package bundle

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

// VerifyCacheOptions configure a cache check. The zero value checks every blob's checksum and drops damaged blobs.
type VerifyCacheOptions struct {
	Deep     bool // also decode every blob and compare its digest; takes as long as verifying a bundle of all blobs
	DryRun   bool // keep damaged blobs
	Progress func(done, total int64)
}

// A CacheReport is the result of a cache check.
type CacheReport struct {
	Checked int           // blobs
	Bytes   int64         // disk usage of the checked blobs
	Skipped int           // blobs of other versions
	Damaged []*CacheError // sorted by path
}

// Verify reads every blob of this version's levels. Damaged blobs are dropped, so that the next build fetches them
// again. Parts are not read, because resuming one checks it. The error says why the check could not be completed.
func (d CacheDir) Verify(ctx context.Context, o VerifyCacheOptions) (CacheReport, error) {
	dec, err := format.NewDecoder(runtime.GOMAXPROCS(0))
	if err != nil {
		return CacheReport{}, err
	}
	if _, err := os.Stat(d.root); err == nil {
		if err := checkOwn(d.root); err != nil {
			return CacheReport{}, err
		}
	}
	v := &cacheVerify{CacheDir: d, VerifyCacheOptions: o, dec: dec}
	if o.Progress != nil {
		for f, err := range d.Files(ctx) {
			if err != nil {
				return CacheReport{}, err
			}
			if f.Kind == CacheBlob && f.Level != "" {
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
		case f.Kind != CacheBlob:
		case f.Level == "":
			v.skip()
		default:
			group.Go(func() error { return v.check(groupCtx, f) })
		}
	}
	if err := group.Wait(); err != nil {
		return v.report, fmt.Errorf("verify the cache: %w", err)
	}
	slices.SortFunc(v.report.Damaged, func(a, b *CacheError) int { return cmp.Compare(a.Path, b.Path) })
	return v.report, nil
}

// cacheVerify is the state of one Verify.
type cacheVerify struct {
	CacheDir
	VerifyCacheOptions
	dec     *zstd.Decoder
	buffers sync.Pool
	total   int64

	mu     sync.Mutex
	report CacheReport
}

func (v *cacheVerify) skip() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Skipped++
}

func (v *cacheVerify) check(ctx context.Context, f CacheFile) error {
	err := v.read(ctx, f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	var damaged *CacheError
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
func (v *cacheVerify) read(ctx context.Context, f CacheFile) error {
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
		return errors.Join(e.copyTo(ctx, io.Discard, *buf), e.close())
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
