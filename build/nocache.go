package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
)

// streamWindow is how many bytes may be ahead of the writer with --no-cache: what keeps a fast network busy while a disk
// writes, and little beside any bundle.
const streamWindow = 256 << 20

// A startsOverError is one that ended a build which keeps nothing.
type startsOverError struct {
	error
	began bool // to download what is large
}

func (e *startsOverError) Unwrap() error { return e.error }

func (e *startsOverError) Hint() string {
	if !e.began {
		return ""
	}
	return "nothing is kept with --no-cache: the next run downloads everything again; without it, it would continue"
}

// errInterruptedOver is errInterrupted of a build that keeps nothing.
func errInterruptedOver() error {
	return &interruptedOverError{}
}

type interruptedOverError struct{}

func (*interruptedOverError) Error() string {
	return "interrupted; with --no-cache nothing is kept: the same command starts over"
}

func (*interruptedOverError) Is(target error) bool { return target == errInterrupted }

// openScratch makes the scratch space that takes the cache's place.
func (b *builder) openScratch() (err error) {
	if b.fetchFlags.cache != "" {
		return &usageError{errors.New("--cache and --no-cache exclude each other")}
	}
	level, err := b.checked()
	if err != nil {
		return err
	}
	b.cacheDir = cmp.Or(os.Getenv("TMPDIR"), filepath.Dir(b.output))
	if b.output == standardStream {
		b.cacheDir = os.TempDir()
	}
	if b.scratch, err = bundle.OpenScratch(b.cacheDir, level); err != nil {
		return err
	}
	b.cache = b.scratch.Cache
	return nil
}

// assembleUncached writes the bundle while its contents come.
func (b *builder) assembleUncached(ctx context.Context, job *fetch.Job, index bundle.Index) (bundle.Summary, error) {
	src, err := b.scratch.Incoming(bundle.IncomingOptions{
		Blobs: job.Later(), Fetch: job.Fetch, Jobs: cmp.Or(b.jobs, fetch.DefaultJobs), Window: streamWindow,
	})
	if err != nil {
		return bundle.Summary{}, err
	}
	s, err := b.write(ctx, src, index, bundle.WriteOptions{})
	var failed *fetch.Errors
	if errors.As(err, &failed) {
		return s, failed // the disk has nothing to do with it
	}
	return s, err
}

// scratchNeed is the most that the scratch space takes at a time: what comes first, and what is ahead of the writer.
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

// announce says what the build takes, and refuses to begin if a disk cannot hold it.
func (b *builder) announce(job *fetch.Job) error {
	needs, err := b.needs(job)
	if err != nil {
		return err
	}
	e := job.Estimate()
	text := fmt.Sprintf("%s: %s to download, %s cached", count(len(b.lock.Items), "item"), size(e.Download), size(e.Cached))
	if e.Resumed > 0 {
		text += fmt.Sprintf(", %s begun before", size(e.Resumed))
	}
	if e.Unknown > 0 {
		text += fmt.Sprintf(", %s of unknown size", count(e.Unknown, "file"))
	}
	room, err := checkSpace(needs...)
	if room != "" {
		text += "; " + room
	}
	b.note("%s", text)
	return err
}

// needs is what the build takes at most: nobody knows how far what has yet to come can be compressed.
func (b *builder) needs(job *fetch.Job) ([]spaceNeed, error) {
	out := spaceNeed{dir: filepath.Dir(b.output), what: "the bundle", remedy: "name another place with -o"}
	for d := range job.Cached() {
		n, err := b.cache.InBundle(d)
		if err != nil {
			return nil, err
		}
		out.bytes += n
	}
	cache := spaceNeed{
		dir: b.cacheDir, what: "the cache",
		remedy: "`kkbundle cache gc` makes some, --cache names another place, --no-cache needs little beside the bundle",
	}
	for size := range job.Missing() {
		if size >= 0 {
			out.bytes += b.cache.MostInBundle(size)
			cache.bytes += b.cache.MostInCache(size)
		}
	}
	cache.bytes -= min(job.Estimate().Resumed, cache.bytes)
	if b.noCache {
		cache.what, cache.bytes, cache.remedy = "scratch space", b.scratchNeed(job), "set TMPDIR to another place"
	}
	if b.output == standardStream {
		return []spaceNeed{cache}, nil
	}
	return []spaceNeed{cache, out}, nil
}
