package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// A Dir is the directory shared by the Caches of all levels, for maintenance: list files, find damaged ones,
// remove unneeded ones. Builds may run at the same time.
type Dir struct{ root string }

// At returns the cache in dir. A missing directory is an empty cache.
func At(dir string) Dir { return Dir{dir} }

// A Kind is the kind of a file in a cache's directory.
type Kind string

// The kinds of files.
const (
	Blob  Kind = "blob"  // a whole blob
	Part  Kind = "part"  // an incomplete blob
	Other Kind = "other" // neither: of unknown purpose
)

// A File is a file in a cache's directory.
type File struct {
	Kind    Kind
	Path    string
	Digest  digest.Digest // digest of a blob, or of a part if known; else ""
	Level   string        // compression level; "" if no level of this version has the encoder
	Encoder string        // the encoder's name; "" if none is recorded
	Disk    int64         // disk usage in bytes
	Used    time.Time     // time of the last use by a build, or of writing

	sum       format.Sum
	frameSize int // 0 if unknown
}

// A branch is the directory of one encoder.
type branch struct {
	dir, level, encoder string
	frameSize           int
}

// branches returns the directories of all encoders, those of this version's levels first.
func (d Dir) branches() ([]branch, error) {
	var known []branch
	names := map[string]bool{}
	for _, level := range format.Levels() {
		id, frameSize, err := level.Encoder()
		if err != nil {
			return nil, err
		}
		dir := encoderDir(id)
		names[dir] = true
		known = append(known, branch{filepath.Join(d.root, dir), level.String(), id, frameSize})
	}
	entries, err := readDir(d.root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if dir := filepath.Join(d.root, e.Name()); isEncoderDir(e) && !names[e.Name()] && hasDirs(dir, partsDir) {
			known = append(known, branch{dir: dir, encoder: readEncoder(dir)})
		}
	}
	return known, nil
}

// readDir is os.ReadDir for a directory that may be missing.
func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// readOwnDir is readDir for a directory in the cache, which is no link.
func readOwnDir(dir string) ([]fs.DirEntry, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, errors.Join(err, f.Close())
}

func isEncoderDir(e fs.DirEntry) bool { return e.IsDir() && len(e.Name()) == 16 && isHex(e.Name()) }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func hasDirs(dir string, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || !info.IsDir()
	})
}

// readEncoder returns the encoder name recorded by a Cache of any version.
func readEncoder(dir string) string {
	f, err := os.Open(filepath.Join(dir, encoderFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	name, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// Files yields every file of the cache, encoder by encoder: first the blobs by digest, then parts, then other files. It
// holds the names of one directory at a time. Files removed meanwhile are left out.
func (d Dir) Files(ctx context.Context) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		branches, err := d.branches()
		if err != nil {
			yield(File{}, fmt.Errorf("list the cache: %w", err))
			return
		}
		for _, b := range branches {
			w := branchWalk{branch: b, ctx: ctx, yield: yield}
			if err := w.run(); err != nil {
				if !errors.Is(err, errStopped) {
					yield(File{}, fmt.Errorf("list the cache: %w", err))
				}
				return
			}
		}
	}
}

var errStopped = errors.New("stopped")

// A branchWalk yields the files of one encoder.
type branchWalk struct {
	branch
	ctx    context.Context //nolint:containedctx // of the one call that it lives for
	yield  func(File, error) bool
	others []string
}

func (w *branchWalk) run() error {
	shards, err := readOwnDir(filepath.Join(w.dir, blobsDir))
	if err != nil {
		return err
	}
	for _, e := range shards {
		if err := w.shard(e); err != nil {
			return err
		}
	}
	parts, err := readOwnDir(filepath.Join(w.dir, partsDir))
	if err != nil {
		return err
	}
	for _, e := range parts {
		if err := w.file(Part, filepath.Join(w.dir, partsDir, e.Name()), partSum(e.Name())); err != nil {
			return err
		}
	}
	rest, err := readOwnDir(w.dir)
	if err != nil {
		return err
	}
	for _, e := range rest {
		switch e.Name() {
		case blobsDir, partsDir, encoderFile:
		default:
			w.others = append(w.others, filepath.Join(w.dir, e.Name()))
		}
	}
	for _, path := range w.others {
		if err := w.file(Other, path, nil); err != nil {
			return err
		}
	}
	return nil
}

// shard yields the blobs whose digests share the first two digits.
func (w *branchWalk) shard(e fs.DirEntry) error {
	dir := filepath.Join(w.dir, blobsDir, e.Name())
	if !e.IsDir() || len(e.Name()) != 2 {
		w.others = append(w.others, dir)
		return nil
	}
	entries, err := readOwnDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		s, err := format.ParseHex(e.Name())
		if err != nil || !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), filepath.Base(dir)) {
			w.others = append(w.others, path)
			continue
		}
		if err := w.file(Blob, path, &s); err != nil {
			return err
		}
	}
	return nil
}

// partSum returns the digest in a part's name, nil if there is none.
func partSum(name string) *format.Sum {
	s, err := format.ParseHex(name)
	if err != nil {
		return nil
	}
	return &s
}

func (w *branchWalk) file(kind Kind, path string, s *format.Sum) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if kind == Part && !info.Mode().IsRegular() {
		kind = Other
	}
	f := File{
		Kind: kind, Path: path, Level: w.level, Encoder: w.encoder, Disk: onDisk(info), Used: info.ModTime(),
		frameSize: w.frameSize,
	}
	if info.IsDir() {
		f.Disk = treeSize(path)
	}
	if s != nil {
		f.sum, f.Digest = *s, s.Digest()
	}
	if !w.yield(f, nil) {
		return errStopped
	}
	return nil
}

// onDisk returns the disk usage of a file, which exceeds the length of small files.
func onDisk(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512 // always in units of 512 bytes, see stat(2)
	}
	return info.Size()
}

// treeSize returns the disk usage of a directory. Unreadable files count 0.
func treeSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			if info, err := e.Info(); err == nil {
				n += onDisk(info)
			}
		}
		return nil
	})
	return n
}

// Size returns the size of a blob, or the content of a part's whole pieces. A truncated or otherwise visibly wrong
// entry gives a *EntryError.
func (d Dir) Size(f File) (int64, error) {
	switch f.Kind {
	case Blob:
		e, err := d.entry(f)
		if err != nil {
			return 0, err
		}
		return e.size, e.Close()
	case Part:
		return partContent(f.Path)
	}
	return 0, nil
}

// entry opens a blob without recording a use.
func (d Dir) entry(f File) (*entry, error) {
	return openEntry(site{d.root, f.Path}, f.sum, f.frameSize)
}

// partContent adds up the content of the whole frames at the start of a part, from their headers.
func partContent(path string) (total int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	for at := int64(0); ; {
		length, content, err := format.SkipFrame(f, at)
		if err != nil || at+length > info.Size() {
			return total, nil //nolint:nilerr // it ends here, whole or torn
		}
		at, total = at+length, total+content
	}
}
