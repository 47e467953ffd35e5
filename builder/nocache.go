package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// streamWindow is the number of bytes that downloads may be ahead of the writer without a cache: enough to keep a
// fast network busy, and little beside any bundle.
const streamWindow = 256 << 20

// A NoCacheError is the error of a build without a cache: the next build downloads everything again.
type NoCacheError struct {
	Err   error
	began bool // to download contents
}

// Error returns the text of Err.
func (e *NoCacheError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NoCacheError) Unwrap() error { return e.Err }

// Hint reports the cost, once there is one.
func (e *NoCacheError) Hint() string {
	if !e.began {
		return ""
	}
	return "--no-cache keeps nothing: the next run downloads everything again; without --no-cache it would continue"
}

// openScratch creates the scratch space that replaces the cache.
func (b *builder) openScratch() (err error) {
	b.cacheDir = os.Getenv("TMPDIR")
	switch {
	case b.Stream != nil, b.cacheDir == "" && len(b.Recipients) > 0: // nothing in clear beside an encrypted bundle
		b.cacheDir = os.TempDir()
	case b.cacheDir == "":
		b.cacheDir = filepath.Dir(b.Output)
	}
	if b.scratch, err = cache.OpenScratch(b.cacheDir, b.Level); err != nil {
		return err
	}
	b.cache = b.scratch.Cache
	return nil
}

// assembleUncached writes the bundle while its contents are downloaded.
func (b *builder) assembleUncached(ctx context.Context, job *fetch.Job, index bundle.Index) (bundle.Summary, error) {
	src, err := bundle.NewIncoming(b.cache, bundle.IncomingOptions{
		Blobs: job.Later(), Fetch: job.Fetch, Jobs: cmp.Or(b.Jobs, fetch.DefaultJobs), Window: streamWindow,
	})
	if err != nil {
		return bundle.Summary{}, err
	}
	s, err := b.write(ctx, src, index, bundle.WriteOptions{})
	if failed, ok := errors.AsType[*fetch.Errors](err); ok {
		return s, failed // without the name of the file, which is not the cause
	}
	return s, err
}

// scratchNeed returns the largest size of the scratch space: manifests, and contents that are ahead of the writer.
func (b *builder) scratchNeed(job *fetch.Job) int64 {
	var first, later, largest int64
	for size, early := range job.Missing() {
		n := b.cache.MostInCache(max(size, 0))
		if early {
			first += n
			continue
		}
		later += n
		largest = max(largest, n)
	}
	return first + min(later, max(streamWindow, largest))
}

// blobSizes yields the size of each blob that the bundle will have; -1 is unknown.
func (b *builder) blobSizes(job *fetch.Job) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for range b.lock.Items { // at least one manifest each
			if !yield(-1) {
				return
			}
		}
		for _, size := range job.Cached() {
			if !yield(size) {
				return
			}
		}
		for size := range job.Missing() {
			if !yield(size) {
				return
			}
		}
	}
}

// announce reports the size of the downloads. It is an error if a disk is too small, or if no bundle can hold the
// blobs.
func (b *builder) announce(job *fetch.Job) error {
	if err := bundle.CheckDirectory(b.blobSizes(job)); err != nil {
		return &InputError{err}
	}
	needs, err := b.needs(job)
	if err != nil {
		return err
	}
	e := job.Estimate()
	text := fmt.Sprintf("%s: %s to download, %s cached", plain.Count(len(b.lock.Items), "item"), plain.Size(e.Download),
		plain.Size(e.Cached))
	if e.Resumed > 0 {
		text += fmt.Sprintf(", %s begun before", plain.Size(e.Resumed))
	}
	if e.Unknown > 0 {
		text += fmt.Sprintf(", %s of unknown size", plain.Count(e.Unknown, "file"))
	}
	room, err := disk.CheckSpace(needs...)
	if room != "" {
		text += "; " + room
	}
	b.note("%s", text)
	return err
}

// cacheNeed returns a need of room in the cache, without bytes.
func (s *session) cacheNeed() disk.Need {
	if s.NoCache {
		return disk.Need{Dir: s.cacheDir, What: "scratch space", Remedy: "set TMPDIR to another directory"}
	}
	return disk.Need{
		Dir: s.cacheDir, What: "the cache",
		Remedy: "`kkbundle cache gc` makes some, --cache names another place, --no-cache needs little beside the bundle",
	}
}

// announceFirstUse prints the number and the bytes of the files that are downloaded for their digests. The error is
// that of a disk without room for them.
func (s *session) announceFirstUse(f fetch.FirstUse) error {
	need, sum := s.cacheNeed(), int64(0)
	for _, size := range f.Sizes {
		sum += size
		need.Bytes += s.cache.MostInCache(size)
	}
	text := fmt.Sprintf("%s without a checksum, to be downloaded first for the digests: %s",
		plain.Count(len(f.Sizes)+f.Unknown, "file"), plain.Size(sum))
	if f.Unknown > 0 {
		text += fmt.Sprintf(", %s of unknown size", plain.Count(f.Unknown, "file"))
	}
	room, err := disk.CheckSpace(need)
	if room != "" {
		text += "; " + room
	}
	s.note("%s", text)
	return err
}

// needs returns the most room that the build takes: the compressed size of downloads is not known yet.
func (b *builder) needs(job *fetch.Job) ([]disk.Need, error) {
	out := disk.Need{Dir: filepath.Dir(b.Output), What: "the bundle", Remedy: "name another place with -o"}
	cache := b.cacheNeed()
	for d := range job.Cached() {
		inBundle, inCache, err := b.cache.InBundle(d)
		if err != nil {
			return nil, err
		}
		out.Bytes += inBundle
		cache.Bytes += inCache
	}
	for size := range job.Missing() {
		if size >= 0 {
			out.Bytes += b.cache.MostInBundle(size)
			cache.Bytes += b.cache.MostInCache(size)
		}
	}
	if len(b.Recipients) > 0 {
		out.Bytes = agefile.MaxSize(out.Bytes)
	}
	cache.Bytes -= min(job.Estimate().Resumed, cache.Bytes)
	if b.NoCache {
		cache.Bytes = b.scratchNeed(job)
	}
	if b.Stream != nil {
		return []disk.Need{cache}, nil
	}
	return []disk.Need{cache, out}, nil
}
