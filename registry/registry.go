// Package registry pushes the content of a bundle to an OCI registry, straight from the bundle file: nothing is
// unpacked, and memory does not grow with the content.
//
// Push sends images with their referrers (signatures, attestations), charts and files. Other items (manifest, lock,
// closure, bills of materials and kkbundle's own binaries) describe the bundle and stay in it. Every blob is queried
// before it is sent, so a second run sends nothing, and a repeated run only the missing content. A blob that several
// repositories need is sent to one of them and mounted into the others if the registry permits. Manifests follow the
// blobs, children before parents; the tag comes last, and its digest is compared afterwards. The number of concurrent
// requests drops while the registry reports too many. Missing projects in Harbor are created, see HarborOptions.
package registry

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

const (
	defaultJobs    = 8
	defaultRetries = 7 // a bit more than a minute in total: a registry's restart
	defaultStall   = 5 * time.Minute
)

// PushOptions configure Push. Only Registry is required.
type PushOptions struct {
	Registry string                 // HOST[:PORT][/PREFIX], the prefix of every destination
	Select   func(bundle.Item) bool // selects images, charts and files; nil is all. An image's referrers go with it
	// selects platforms of images and files, "linux/amd64"; empty is all. See Push about indexes
	Platforms    []string
	Rename       []Rename          // changed destinations; the first match applies
	DryRun       bool              // query the registry, but change nothing
	Recheck      bool              // query every blob, also those of existing manifests
	Harbor       *HarborOptions    // nil treats Harbor like any registry: its projects must exist
	Auth         authn.Keychain    // queried once, for the registry; nil is no login
	Transport    http.RoundTripper // nil is that of transport.New
	PlainHTTP    bool              // http instead of https; without it nothing is ever sent unencrypted
	Jobs         int               // concurrent requests, over images and blobs together; 0 is 8
	Retries      int               // retries of temporary failures; 0 is 7, below 0 none
	StallTimeout time.Duration     // longest time without a byte moving; 0 is 5 minutes
	Logger       *slog.Logger      // nil discards
	Progress     func(Event)       // called by one goroutine at a time; it must return quickly
}

// An Event is the progress of a push. Bytes count every blob once for each repository that needs it; an existing or
// mounted blob is done at once. Done can decrease when an upload starts over.
type Event struct {
	Done, Total      int64 // bytes
	ItemsDone, Items int
	Finished         string // the item finished by this event, or ""
	Err              error  // the item's error, or nil
}

// States of an ItemResult.
const (
	StatePushed  = "pushed"  // something was sent
	StatePresent = "present" // everything existed
	StateFailed  = "failed"  // see Error
	StateMissing = "missing" // a dry run would send something
	StateSkipped = "skipped" // not selected, or of a kind that is not pushed
)

// An ItemResult is the outcome of one item.
type ItemResult struct {
	Kind        string `json:"kind"`
	Ref         string `json:"ref"`
	Platform    string `json:"platform,omitempty"`
	State       string `json:"state"`
	Destination string `json:"destination,omitempty"`
	// at the destination: the item's own, except for a reduced index
	Digest  digest.Digest `json:"digest,omitempty"`
	Reduced bool          `json:"reduced,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// PushSummary describes the outcome of a push, also as far as it got before an error.
type PushSummary struct {
	Registry      string        `json:"registry"` // without scheme
	Bundle        digest.Digest `json:"bundle"`   // the bundle's identity
	Items         []ItemResult  `json:"items"`    // in the bundle's order
	BlobsSent     int           `json:"blobsSent"`
	BlobsMounted  int           `json:"blobsMounted"`
	BlobsPresent  int           `json:"blobsPresent"`
	ManifestsSent int           `json:"manifestsSent"`
	BytesSent     int64         `json:"bytesSent"` // of pushed blobs and manifests; failed attempts do not count
	Warnings      []string      `json:"warnings,omitempty"`
	ItemsPushed   int           `json:"itemsPushed"`
	ItemsPresent  int           `json:"itemsPresent"`
	ItemsFailed   int           `json:"itemsFailed"`
	ItemsMissing  int           `json:"itemsMissing,omitempty"` // set by a dry run only, like the next two
	BlobsMissing  int           `json:"blobsMissing,omitempty"`
	// bytes that would be sent; a mountable blob counts once
	BytesMissing int64         `json:"bytesMissing,omitempty"`
	ItemsSkipped int           `json:"itemsSkipped"`
	Harbor       *HarborResult `json:"harbor,omitempty"` // nil if the registry is not Harbor, or HarborOptions are nil
}

// Push sends the images, charts and files of b to a registry, to the places given by Destination.
//
// A failed item does not stop the others. The error holds one error for each failed item, or a single one if all fail
// for the same reason. It matches ErrLogin, ErrUnreachable, bundle.ErrDamaged or ctx's error. Nothing is sent if two
// items have the same destination, or if Harbor does not allow a name. An index with unselected children is pushed
// unchanged. If the registry refuses it, its tag gets an index of the existing children, and the summary a warning with
// both digests. An image whose reference pins the index's digest fails instead. Push never deletes anything at the
// registry.
func Push(ctx context.Context, b *bundle.Reader, o PushOptions) (PushSummary, error) {
	return pushFrom(ctx, file{b}, o)
}

// A file is an origin that leaves hashing to the registry, which must check the digest of every upload and does so in
// parallel (distribution specification, "Pushing blobs"). If the registry refuses one, blame finds the cause.
type file struct{ *bundle.Reader }

func (f file) Blob(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error) {
	return f.Unhashed(ctx, d, offset)
}

// blame returns the blob's damage in the bundle, or err if the blob is intact.
func (f file) blame(ctx context.Context, d digest.Digest, err error) error {
	content, openErr := f.Reader.Blob(ctx, d, 0)
	if openErr != nil {
		return err
	}
	defer content.Close()
	if _, readErr := io.Copy(io.Discard, content); errors.Is(readErr, bundle.ErrDamaged) {
		return readErr
	}
	return err
}

func pushFrom(ctx context.Context, b origin, o PushOptions) (PushSummary, error) {
	o = o.withDefaults()
	t, err := parseTarget(o.Registry)
	if err != nil {
		return PushSummary{}, err
	}
	t.rules = o.Rename
	s, err := newSession(ctx, t, o)
	if err != nil {
		return PushSummary{}, err
	}
	plan := planner{bundle: b, target: t, choose: o.Select, platforms: o.Platforms, repo: s.repo}
	err = plan.plan(ctx)
	p := &pusher{bundle: b, session: s, target: t, options: o, jobs: plan.jobs, blobs: plan.blobs}
	p.tally = &tally{progress: o.Progress, dryRun: o.DryRun, items: plan.items, total: plan.total}
	if err != nil {
		return p.summary(), err
	}
	return p.push(ctx)
}

func (o PushOptions) withDefaults() PushOptions {
	if o.Jobs <= 0 {
		o.Jobs = defaultJobs
	}
	o.Retries = cmp.Or(o.Retries, defaultRetries)
	if o.StallTimeout <= 0 {
		o.StallTimeout = defaultStall
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Select == nil {
		o.Select = func(bundle.Item) bool { return true }
	}
	return o
}
