package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// GCOptions select the files that GC removes. The zero value removes only files that no build of this version can use.
type GCOptions struct {
	// MaxSize is the most disk space in bytes to keep, if not nil. The least recently used files go first.
	MaxSize *int64
	// OlderThan is how long a file may lie unused, if not nil.
	OlderThan *time.Duration
	// Keep reports whether a blob must stay; nil keeps none.
	Keep func(digest.Digest) bool
	// DryRun reports the files without removing them.
	DryRun bool
	// Removed is called for each removed file; may be nil.
	Removed func(File)
}

// A GCResult is the result of a GC. Sizes are bytes of disk.
type GCResult struct {
	Removed, Kept int // files
	Freed, Left   int64
	InUse         int // kept files that running builds use
}

// GC removes files in this order: unusable ones (entries in an unknown format, abandoned parts, unknown files), those
// older than allowed, and the least recently used until the rest is small enough. Files used by a running build and
// parts being written stay. An error with one file does not stop the GC.
func (d Dir) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	if _, err := os.Stat(d.root); errors.Is(err, fs.ErrNotExist) {
		return GCResult{}, nil
	}
	g := &gc{usage: usage{root: d.root}, GCOptions: o}
	if err := g.begin(); err != nil {
		return GCResult{}, fmt.Errorf("clean the cache: %w", errors.Join(err, g.Close()))
	}
	err := g.run(ctx, d)
	if err = errors.Join(err, g.Close()); err != nil {
		err = fmt.Errorf("clean the cache: %w", err)
	}
	return g.result, err
}

// gc is the state of one GC, which itself counts as a use of the cache.
type gc struct {
	usage
	GCOptions
	bound  time.Time // files used since then are in use
	rest   []candidate
	result GCResult
	errs   []error
}

// A candidate is a file to remove if the cache is too large. There may be millions of them: the other fields of a
// File follow from directory and digest.
type candidate struct {
	dir   string // directory of the encoder
	name  string // name of a part; "" for a blob
	sum   format.Sum
	used  int64 // last use, in nanoseconds since 1970
	disk  int64
	ahead bool // the last use lies in the future; it becomes now if the file stays
}

func (g *gc) run(ctx context.Context, d Dir) error {
	var err error
	if g.bound, _, err = g.running(); err != nil {
		return err
	}
	for f, err := range d.Files(ctx) {
		if err != nil {
			return err
		}
		g.look(f)
	}
	if g.MaxSize != nil {
		g.shrink(ctx)
	}
	if !g.DryRun {
		g.errs = append(g.errs, g.prune(d))
	}
	return errors.Join(append(g.errs, ctx.Err())...)
}

// look removes a file or, for now, counts it as kept.
func (g *gc) look(f File) {
	useless := g.useless(f)
	if g.Keep != nil && f.Kind == Blob && !useless && g.Keep(f.Digest) {
		g.keep(f.Disk)
		return
	}
	ahead := g.ahead(f.Used)
	old := g.OlderThan != nil && g.since.Sub(f.Used) > *g.OlderThan
	if useless || old {
		g.remove(f)
		return
	}
	g.keep(f.Disk)
	if g.MaxSize == nil {
		if ahead {
			g.correct(f.Path)
		}
		return
	}
	c := candidate{
		sum: f.sum, ahead: ahead, used: f.Used.UnixNano(), disk: f.Disk,
		dir: filepath.Dir(filepath.Dir(f.Path)),
	}
	if f.Kind == Part {
		c.name = filepath.Base(f.Path)
	} else {
		c.dir = filepath.Dir(c.dir)
	}
	g.rest = append(g.rest, c)
}

// useless reports whether no build of this version can use a file.
func (g *gc) useless(f File) bool {
	switch f.Kind {
	case Blob:
		return f.Level == "" && !Dir{g.root}.readable(f)
	case Part:
		return f.Level == "" || isOwn(f.Path) || g.since.Sub(f.Used) > partLife
	default:
		return true
	}
}

func (g *gc) keep(disk int64) {
	g.result.Kept++
	g.result.Left += disk
}

// shrink removes the least recently used files.
func (g *gc) shrink(ctx context.Context) {
	slices.SortFunc(g.rest, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(b.disk, a.disk), format.CompareSums(a.sum, b.sum))
	})
	for _, c := range g.rest {
		f := c.file()
		if g.result.Left <= *g.MaxSize || ctx.Err() != nil {
			if c.ahead {
				g.correct(f.Path)
			}
			continue
		}
		g.result.Kept--
		g.result.Left -= c.disk
		g.remove(f)
	}
}

// file returns the file of a candidate.
func (c candidate) file() File {
	f := File{
		Kind: Part, Path: filepath.Join(c.dir, partsDir, c.name), Disk: c.disk, Used: time.Unix(0, c.used),
		sum: c.sum,
	}
	if c.name == "" {
		h := c.sum.Hex()
		f.Kind, f.Path = Blob, filepath.Join(c.dir, blobsDir, h[:2], h)
	}
	if f.Kind == Blob || partSum(c.name) != nil {
		f.Digest = c.sum.Digest()
	}
	return f
}

// correct makes now the last use of a file that was used when a clock was wrong, so that it ages like others.
func (g *gc) correct(path string) {
	if g.DryRun {
		return
	}
	if err := touch(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.errs = append(g.errs, err)
	}
}

// remove removes a file unless it is in use, and counts it.
func (g *gc) remove(f File) {
	gone, err := g.removed(f)
	if errors.Is(err, fs.ErrNotExist) {
		return // a build or another GC has removed it, or given it another name
	}
	if err != nil {
		g.errs = append(g.errs, err)
	}
	if !gone {
		g.keep(f.Disk)
		if err == nil {
			g.result.InUse++
		}
		return
	}
	g.result.Removed++
	g.result.Freed += f.Disk
	if g.Removed != nil {
		g.Removed(f)
	}
}

// removed removes a file unless it is in use. A build that is about to use the file either records the use first, or
// finds the file missing. The error is fs.ErrNotExist if the file is missing.
func (g *gc) removed(f File) (gone bool, err error) {
	err = g.locked(unix.LOCK_EX, func() error {
		info, err := os.Lstat(f.Path)
		if err != nil {
			return err
		}
		if used := info.ModTime(); !used.Before(g.bound) && (g.bound.IsZero() || !g.ahead(used)) {
			return nil
		}
		if info.Mode().IsRegular() && f.Kind == Part {
			gone, err = g.removedPart(f.Path)
			return err
		}
		gone = true
		if g.DryRun {
			return nil
		}
		return os.RemoveAll(f.Path)
	})
	return gone && err == nil, err
}

// removedPart removes a part unless a writer holds it.
func (g *gc) removedPart(path string) (gone bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err != nil {
		return false, nil //nolint:nilerr // it is somebody else's
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, nil //nolint:nilerr // somebody writes it
	}
	if g.DryRun {
		return true, nil
	}
	return true, os.Remove(path)
}

// prune removes empty directories of other versions while nobody uses the cache. A process that opens a cache first
// registers its use and then creates its directories under the same lock.
func (g *gc) prune(d Dir) error {
	return g.locked(unix.LOCK_EX, func() error {
		if _, others, err := g.running(); err != nil || others {
			return err
		}
		branches, err := d.branches()
		if err != nil {
			return err
		}
		for _, b := range branches {
			if b.level == "" && empty(b.dir) {
				err = errors.Join(err, os.RemoveAll(b.dir))
			}
		}
		return err
	})
}

// empty reports whether dir holds only directories and the encoder's name.
func empty(dir string) bool {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path != filepath.Join(dir, encoderFile) {
			err = fs.ErrExist
		}
		return err
	})
	return err == nil
}

// Copies are the blobs of a cache's directory at any level.
type Copies struct {
	root     string
	branches []branch
	dec      *zstd.Decoder
}

// Copies returns the blobs that are there, whatever their level.
func (d Dir) Copies() (Copies, error) {
	branches, err := d.branches()
	if err != nil {
		return Copies{}, err
	}
	dec, err := format.NewDecoder(1)
	return Copies{root: d.root, branches: branches, dec: dec}, err
}

// Of yields every readable copy of a blob. It yields nothing if the blob has more than most bytes.
func (c Copies) Of(ctx context.Context, s format.Sum, most int64) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, b := range c.branches {
			e, err := openEntry(site{c.root, entryPath(b.dir, s)}, s, b.frameSize)
			if err != nil {
				continue // not at this level
			}
			if e.size > most {
				_ = e.Close() // opened for reading only
				return
			}
			r := e.stream(ctx, c.dec)
			data, err := io.ReadAll(r)
			if errors.Join(err, r.Close()) == nil && !yield(data) {
				return
			}
		}
	}
}
