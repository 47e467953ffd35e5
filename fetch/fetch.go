// Package fetch brings software from where it is published into a Store. Resolve turns a manifest into a lock: every item
// with its digest. All turns a lock into bytes: it asks for nothing that the Store has, continues what an earlier run left
// half-done, and checks every byte against the lock.
//
// Files come over HTTP(S) or from the local disk, images and charts from OCI registries, charts also from Helm's HTTP
// repositories. Everything is read by one range reader that survives resets, stalls and restarts of either side.
package fetch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/manifest"
)

// DefaultJobs is how many transfers run at once if Options.Jobs is 0.
const DefaultJobs = 8

// A Store receives blobs whose size and digest may not be known yet. Its methods are called concurrently, but no two
// writers with the same key are open at the same time in one run.
type Store interface {
	// Stat returns the size of a blob that is there as a whole.
	Stat(ctx context.Context, d digest.Digest) (size int64, ok bool, err error)
	// Open reads a blob that is there.
	Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error)
	// Begin returns a writer that continues where an earlier one under the same key stopped, and how many bytes that had.
	Begin(ctx context.Context, key string) (w BlobWriter, offset int64, err error)
}

// A BlobWriter takes the bytes of one blob. It is an alias of a literal, so that a Store need not import this package.
type BlobWriter = interface {
	io.Writer
	// Commit keeps what was written if it has that size and digest (-1 and "" if unknown) and says what it has. An error
	// without a cause from the operating system means that it is something else; then nothing is kept.
	Commit(ctx context.Context, size int64, want digest.Digest) (ocispec.Descriptor, error)
	// Reset forgets what was written.
	Reset() error
	// Close without Commit keeps what was written for a later Begin.
	Close() error
}

// Options say how to fetch. Only Store is required.
type Options struct {
	Store Store
	// Sources say how upstream hosts are reached; a host that is not named is asked directly, over HTTPS.
	Sources []manifest.Source
	// Overrides say where files and charts are fetched from instead, and what they have to be.
	Overrides []manifest.Override
	// Platforms are those to fetch of files and images with several; empty means those of the manifest or the lock.
	Platforms []string
	// Policy is for platforms that an image lacks; empty means the manifest's, and strict for a lock.
	Policy manifest.PlatformPolicy
	// Jobs bounds the transfers that run at once; 0 is DefaultJobs.
	Jobs int
	// Dir is where relative paths of local files, charts and certificate authorities begin.
	Dir string
	// Keychain has the credentials of registries; nil is docker's configuration with its helpers. Credentials of other
	// servers come from the machine entries of netrc ($NETRC or ~/.netrc).
	Keychain authn.Keychain
	// Hosts is shared between the calls of one run; nil begins anew.
	Hosts *Hosts
	// Memory is a directory where it is remembered what files were whose checksum nobody publishes, so that an unchanged one
	// is not fetched again. It is made if it is not there; "" remembers nothing.
	Memory string
	// MaxUnknown bounds a file whose size nobody tells, in bytes; 0 is 64 GiB.
	MaxUnknown int64
	// Retry says how patient to be; the zero value has sensible defaults.
	Retry Retry
	// Logger gets retries and platforms that are lacking; nil discards it.
	Logger *slog.Logger
	// Find, if set, is called by Resolve once the manifest's charts are in the Store, with those that could be brought. The
	// images that it returns are pinned with the manifest's own. Its error does not keep the rest from being pinned.
	Find func(context.Context, []Chart) ([]Found, error)
	// Progress is called often, and from several goroutines at once.
	Progress func(Event)
}

// Retry says how often and how long to try again. Each zero field has the default named there.
type Retry struct {
	Attempts      int           // requests in a row without one new byte before giving up; 6
	Wait          time.Duration // before the second attempt, doubled for each further one, half of it random; 500 ms
	MaxWait       time.Duration // bound of the doubling; 20 s
	MaxRetryAfter time.Duration // how long a server may ask to wait (Retry-After); one that asks for more is an error; 2 min
	Idle          time.Duration // how long a server may send nothing before the connection is given up; 60 s
}

// An Item is one item that is in the Store as a whole.
type Item struct {
	Kind, Ref, Name, Version string
	// Descriptor is the root: an image's manifest or index, a chart's or file's artifact manifest.
	Descriptor ocispec.Descriptor
	// Absent are children of the item's indexes that were not chosen, and so not fetched. Sorted.
	Absent []digest.Digest
}

// An EventType says what an Event reports.
type EventType int

// The events of a run.
const (
	EventBytes    EventType = iota // only the counters changed
	EventStarted                   // work on an item began
	EventFinished                  // an item is there as a whole, or failed: Err
)

// An Event reports progress. Counters are of the whole run; concurrent events may be delivered out of order.
type Event struct {
	Type                EventType
	Kind, Ref, Platform string // the item, for EventStarted and EventFinished
	Err                 error  // why an item failed
	Total               int64  // bytes to be transferred in this run, as far as known yet; grows while items are looked up
	Done                int64  // bytes transferred; shrinks where a transfer had to start over
	Cached              int64  // bytes that need no transfer because an earlier run fetched them
}

// Errors has every item that failed, sorted by kind, reference and platform. The others are done.
type Errors struct {
	Failed []*ItemError
	Items  int // how many items there were in all
}

// Error has a line for each item that failed.
func (e *Errors) Error() string {
	if len(e.Failed) == 1 {
		return e.Failed[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d items could not be fetched:", len(e.Failed), e.Items)
	for _, f := range e.Failed {
		fmt.Fprintf(&b, "\n  %s", strings.ReplaceAll(f.Error(), "\n", "\n    "))
	}
	return b.String()
}

// Unwrap lets errors.Is and errors.As look into every item's error.
func (e *Errors) Unwrap() []error {
	out := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		out[i] = f
	}
	return out
}

// An ItemError is an item with the reason why it could not be fetched.
type ItemError struct {
	Kind, Ref, Platform string
	Err                 error
}

// Error begins with the item.
func (e *ItemError) Error() string {
	item, text := e.Kind+" "+e.Ref, e.Err.Error()
	if e.Platform != "" {
		item += " (" + e.Platform + ")"
	}
	if rest, same := strings.CutPrefix(text, e.Ref); same && (strings.HasPrefix(rest, ": ") || strings.HasPrefix(rest, " (")) {
		return item + rest // the reason begins with the same address
	}
	return item + ": " + text
}

// Unwrap returns the reason.
func (e *ItemError) Unwrap() error { return e.Err }

// An Estimation says what fetching a lock takes.
type Estimation struct {
	Download int64 // bytes still to be transferred
	Resumed  int64 // bytes that an earlier run left of blobs which are not there as a whole
	Cached   int64 // bytes of the blobs that the Store has
	Blobs    int   // that the Store lacks
	Unknown  int   // blobs whose size upstream does not tell, among these
}

// Resolve pins every item of the manifest, in which what the catalog adds has been merged already, and what Options.Find
// finds. Manifests of images and files whose checksum nobody publishes are fetched into the Store on the way. The error is
// *Errors with every item that could not be resolved, and comes with a lock of the others; or it is the context's, or joined
// with Find's, and comes without.
func Resolve(ctx context.Context, b *manifest.Bundle, o Options) (*manifest.Lock, error) {
	if o.Policy == "" {
		o.Policy = b.PlatformPolicy
	}
	if len(o.Platforms) == 0 {
		o.Platforms = b.Platforms
	}
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.referrers = b.Referrers
	fingerprint, err := b.Fingerprint()
	if err != nil {
		return nil, err
	}
	pins, err := s.resolve(ctx, b)
	if _, partial := err.(*Errors); err != nil && !partial { //nolint:errorlint // what is joined with it leaves no lock
		return nil, err
	}
	return &manifest.Lock{
		APIVersion: manifest.APIVersion,
		Kind:       manifest.KindLock,
		Metadata:   b.Metadata,
		Manifest:   fingerprint.String(),
		Items:      pins,
	}, err
}

// All brings every item of the lock into the Store and returns those that are there, in the lock's order. The error is
// *Errors with every item that failed, joined with the context's if that ended; what was transferred by then is kept.
func All(ctx context.Context, l *manifest.Lock, o Options) ([]Item, error) {
	j, err := Prepare(ctx, l, o)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	return j.Run(ctx)
}

// Estimate says how much All would transfer. It fetches what it must read for that: the manifests of images and OCI charts.
// An *Errors comes with the estimation of the others.
func Estimate(ctx context.Context, l *manifest.Lock, o Options) (Estimation, error) {
	j, err := Prepare(ctx, l, o)
	if err != nil {
		return Estimation{}, err
	}
	defer j.Close()
	return j.Estimate(), j.failed.err(ctx, j.items)
}
