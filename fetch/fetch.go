// Package fetch brings software from its publishers into a Store. Resolve turns a manifest into a lock: every item with
// its digest. All turns a lock into bytes: it requests only content that the Store lacks, resumes partial downloads of
// earlier runs, and checks every byte against the lock.
//
// Files come over HTTP(S) or from the local disk, images and charts from OCI registries, charts also from Helm's HTTP
// repositories. All downloads use one range reader, which survives resets, stalls and restarts of either side.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// DefaultJobs is the number of concurrent transfers if Options.Jobs is 0.
const DefaultJobs = 8

// LevelNote is the level of log records that people should see and that are no warnings.
const LevelNote = upstream.LevelNote

// The settings of package upstream, which knows the servers and the downloads from them.
type (
	// A Store receives blobs.
	Store = upstream.Store
	// A BlobWriter takes the bytes of one blob.
	BlobWriter = upstream.BlobWriter
	// Hosts holds a run's knowledge about the contacted hosts.
	Hosts = upstream.Hosts
	// Retry configures the number and timing of attempts.
	Retry = upstream.Retry
)

// NewHosts returns an empty Hosts.
func NewHosts() *Hosts { return upstream.NewHosts() }

// Options configure fetching. Only Store is required.
type Options struct {
	Store Store
	// Sources configure access to upstream hosts; other hosts are contacted directly, over HTTPS.
	Sources []sources.Source
	// Overrides replace the addresses and checksums of files and charts.
	Overrides []manifest.Override
	// Platforms are the platforms to fetch of files and images with several; empty means those of the manifest or the
	// lock.
	Platforms []string
	// Policy applies to platforms that an image lacks; empty means the manifest's, and strict for a lock.
	Policy manifest.PlatformPolicy
	// Jobs bounds the concurrent transfers; 0 means DefaultJobs.
	Jobs int
	// Dir is the base of relative paths of local files, charts and certificate authorities.
	Dir string
	// Self is the program that a manifest's self takes for its platform; the zero value is the one that runs.
	Self Program
	// Keychain has the credentials of registries; nil is docker's configuration with its helpers. Credentials of other
	// servers come from the machine entries of netrc ($NETRC or ~/.netrc).
	Keychain authn.Keychain
	// Hosts is shared between the calls of one run; nil starts with an empty one.
	Hosts *Hosts
	// Memory is a directory that records files without a published checksum, so that an unchanged file is not fetched
	// again. It is created if missing; "" records nothing.
	Memory string
	// Scratch is a directory for temporary files without names; "" is that of the system.
	Scratch string
	// MaxUnknown bounds a file of unknown size, in bytes; 0 means 64 GiB.
	MaxUnknown int64
	// Retry configures retries; the zero value has sensible defaults.
	Retry Retry
	// Logger receives retries and missing platforms; nil discards them.
	Logger *slog.Logger
	// Keep is an earlier lock: Resolve asks upstream only for what it does not pin. A tag, a file without a sha256
	// and a version of a chart that fits keep their digest; signatures, referrers, platforms and packages are looked
	// up again.
	Keep *manifest.Lock
	// Find, if set, is called by Resolve once the manifest's charts are in the Store, except those that failed. The
	// images that it returns are pinned like the manifest's own. Its error does not prevent the rest from being pinned.
	Find func(context.Context, []Chart) ([]Found, error)
	// FirstUse, if set, is called by Resolve before it downloads files that have no published digest, if there are any.
	// Its error ends Resolve.
	FirstUse func(FirstUse) error
	// Progress is called often, and concurrently.
	Progress func(Event)
}

// An Item is one complete item in the Store.
type Item struct {
	Kind, Ref, Name, Version string
	// Descriptor is the root: an image's manifest or index, a chart's or file's artifact manifest.
	Descriptor ocispec.Descriptor
	// Absent are children of the item's indexes that were not selected, and so not fetched. Sorted.
	Absent []digest.Digest
}

// An EventType is the kind of an Event.
type EventType int

// The events of a run.
const (
	EventBytes    EventType = iota // only the counters changed
	EventStarted                   // work on an item began
	EventFinished                  // an item is complete, or failed: Err
)

// An Event reports progress. Counters cover the whole run; concurrent events may be delivered out of order.
type Event struct {
	Type                EventType
	Kind, Ref, Platform string // the item, for EventStarted and EventFinished
	Err                 error  // the cause of a failed item
	Total               int64  // bytes to transfer in this run, as far as known; grows while items are looked up
	Done                int64  // bytes transferred; shrinks when a transfer starts over
	Cached              int64  // bytes that need no transfer because an earlier run fetched them
}

// Errors lists every item that failed, sorted by kind, reference and platform. The others are complete.
type Errors struct {
	Failed []*ItemError
	Items  int // number of all items
}

// Error has a line for each cause: items with the same cause are below it, the first few of them.
func (e *Errors) Error() string {
	const most = 5
	if len(e.Failed) == 1 {
		return e.Failed[0].Error()
	}
	var causes []string
	items := map[string][]*ItemError{}
	for _, f := range e.Failed {
		c := f.cause()
		if items[c] == nil {
			causes = append(causes, c)
		}
		items[c] = append(items[c], f)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d items could not be fetched:", len(e.Failed), e.Items)
	for _, c := range causes {
		list := items[c]
		if len(list) == 1 {
			fmt.Fprintf(&b, "\n  %s", strings.ReplaceAll(list[0].Error(), "\n", "\n    "))
			continue
		}
		fmt.Fprintf(&b, "\n  %d items: %s", len(list), strings.ReplaceAll(c, "\n", "\n    "))
		for _, f := range list[:min(most, len(list))] {
			fmt.Fprintf(&b, "\n    %s%s", f.item(), f.origin())
		}
		if more := len(list) - most; more > 0 {
			fmt.Fprintf(&b, "\n    and %d more", more)
		}
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

// An ItemError is an item with the cause of its failure.
type ItemError struct {
	Kind, Ref, Platform string
	Err                 error
	Place               string // where the manifest lists the item, FILE:LINE; "" if it does not, or nobody looked
	// Found has the first places of an image that the manifest does not list.
	Found []string
}

// Error begins with the item and ends with its place.
func (e *ItemError) Error() string {
	text := e.Err.Error() + e.origin()
	if len(e.Found) > 0 && e.Place == "" {
		text += "; if nothing needs it, name it under excludeImages"
	}
	if rest, same := strings.CutPrefix(text, e.Ref); same && (strings.HasPrefix(rest, ": ") ||
		strings.HasPrefix(rest, " (")) {
		return e.item() + rest // the cause begins with the same address
	}
	return e.item() + ": " + text
}

// origin returns where the item comes from, with a blank before it, "" if nobody knows.
func (e *ItemError) origin() string {
	switch {
	case e.Place != "":
		return " (" + e.Place + ")"
	case len(e.Found) > 1:
		return fmt.Sprintf(" (found in %s and %s)", e.Found[0], plain.Count(len(e.Found)-1, "other place"))
	case len(e.Found) > 0:
		return " (found in " + e.Found[0] + ")"
	}
	return ""
}

// item names the item.
func (e *ItemError) item() string {
	if e.Platform != "" {
		return e.Kind + " " + e.Ref + " (" + e.Platform + ")"
	}
	return e.Kind + " " + e.Ref
}

// cause returns the reason without the item: items of a host that cannot be reached have the same one.
func (e *ItemError) cause() string {
	if gone, ok := errors.AsType[*upstream.UnreachableError](e.Err); ok {
		return gone.Error()
	}
	return strings.TrimPrefix(strings.TrimPrefix(e.Err.Error(), e.Ref), ": ")
}

// Unwrap returns the reason.
func (e *ItemError) Unwrap() error { return e.Err }

// An Estimation is the expected transfer for a lock.
type Estimation struct {
	Download int64 // bytes still to be transferred
	Resumed  int64 // bytes of incomplete blobs left by an earlier run
	Cached   int64 // bytes of the blobs that the Store has
	Blobs    int   // missing from the Store
	Unknown  int   // blobs of unknown size, among these
}

// Resolve pins every item of the manifest, into which the catalog's additions have been merged, and the images that
// Options.Find returns. On the way, manifests of images and files without a published checksum are fetched into the
// Store. The error is *Errors with every item that could not be resolved, with a lock of the others; or it is the
// context's, or joined with Find's, without a lock.
func Resolve(ctx context.Context, b *manifest.Bundle, o Options) (*manifest.Lock, error) {
	o.Policy = cmp.Or(o.Policy, b.PlatformPolicy)
	if len(o.Platforms) == 0 {
		o.Platforms = b.Platforms
	}
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.images.referrers, s.images.complete, s.images.root = b.Referrers, b.Indexes, b.Trust.Root
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

// All brings every item of the lock into the Store and returns the complete items, in the lock's order. The error is
// *Errors with every failed item, joined with the context's error if that ended; transferred bytes are kept.
func All(ctx context.Context, l *manifest.Lock, o Options) ([]Item, error) {
	j, err := Prepare(ctx, l, o)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	return j.Run(ctx)
}
