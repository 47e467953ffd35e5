// Package registry puts the content of a bundle into an OCI registry, straight from the bundle file: nothing is unpacked,
// and memory does not grow with the content.
//
// Push sends images with what is attached to them (signatures, attestations), charts and files. What else a bundle holds (its manifest, lock, closure, bills of materials and
// kkbundle's own binaries) describes the bundle and stays in it. Every blob is asked for before it is sent, so a second run
// sends nothing, and a run after an interruption sends what was missing. A blob that several repositories need is sent to
// one of them and mounted into the others where the registry grants that. Manifests follow the blobs, children before
// parents; the tag comes last, and its digest is compared afterwards. Requests become fewer while the registry says that there
// are too many. Harbor's projects are made where they are missing, see HarborOptions.
package registry

import (
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
	defaultRetries = 7 // a bit more than a minute in all: a registry's restart
	defaultStall   = 5 * time.Minute
)

// PushOptions say where a bundle goes and how. Only Registry is needed.
type PushOptions struct {
	Registry     string                 // HOST[:PORT][/PREFIX]; every destination is under it
	Select       func(bundle.Item) bool // which images, charts and files; nil is all. What is attached to an image goes with it
	Platforms    []string               // which platforms of images and files, "linux/amd64"; none given is all. See Push about indexes
	Rename       []Rename               // where items go instead; the first that fits
	DryRun       bool                   // ask the registry what it has, and change nothing there
	Recheck      bool                   // ask for every blob, also those of manifests that are there
	Harbor       *HarborOptions         // nil treats Harbor as any registry: its projects must exist
	Auth         authn.Keychain         // asked once, for the registry; nil is no login
	Transport    http.RoundTripper      // nil is NewTransport(""), see there
	PlainHTTP    bool                   // http instead of https; without it nothing is ever sent unencrypted
	Jobs         int                    // requests at a time, over images and blobs together; 0 is 8
	Retries      int                    // how often what failed for a passing reason is done again; 0 is 7, below 0 never
	StallTimeout time.Duration          // how long a request may go without moving a byte; 0 is 5 minutes
	Logger       *slog.Logger           // nil discards
	Progress     func(Event)            // called by one goroutine at a time; it must return quickly
}

// An Event says how far a push is. Bytes count every blob once for each repository that needs it; a blob that is there
// already or mounted is done at once. Done can go back when an upload starts over.
type Event struct {
	Done, Total      int64 // bytes
	ItemsDone, Items int
	Finished         string // the item that this event ends, "" for none
	Err              error  // why that item failed, nil if it did not
}

// States of an ItemResult.
const (
	StatePushed  = "pushed"  // something had to be sent
	StatePresent = "present" // everything was there
	StateFailed  = "failed"  // see Error
	StateMissing = "missing" // a dry run found that something would be sent
	StateSkipped = "skipped" // not selected, or of a kind that is not pushed
)

// An ItemResult is what became of one item.
type ItemResult struct {
	Kind        string        `json:"kind"`
	Ref         string        `json:"ref"`
	Platform    string        `json:"platform,omitempty"`
	State       string        `json:"state"`
	Destination string        `json:"destination,omitempty"`
	Digest      digest.Digest `json:"digest,omitempty"` // at the destination: the item's own, but for a reduced index
	Reduced     bool          `json:"reduced,omitempty"`
	Error       string        `json:"error,omitempty"`
}

// PushSummary is what a push did. It is filled in as far as things went when there is an error too.
type PushSummary struct {
	Registry      string        `json:"registry"` // without scheme
	Bundle        digest.Digest `json:"bundle"`   // the bundle's identity
	Items         []ItemResult  `json:"items"`    // in the bundle's order
	BlobsSent     int           `json:"blobsSent"`
	BlobsMounted  int           `json:"blobsMounted"`
	BlobsPresent  int           `json:"blobsPresent"`
	ManifestsSent int           `json:"manifestsSent"`
	BytesSent     int64         `json:"bytesSent"` // of blobs and manifests that arrived; not of attempts that failed
	Warnings      []string      `json:"warnings,omitempty"`
	ItemsPushed   int           `json:"itemsPushed"`
	ItemsPresent  int           `json:"itemsPresent"`
	ItemsFailed   int           `json:"itemsFailed"`
	ItemsMissing  int           `json:"itemsMissing,omitempty"` // only of a dry run, as the next two are
	BlobsMissing  int           `json:"blobsMissing,omitempty"`
	BytesMissing  int64         `json:"bytesMissing,omitempty"` // what would be sent; a blob that can be mounted counts once
	ItemsSkipped  int           `json:"itemsSkipped"`
	Harbor        *HarborResult `json:"harbor,omitempty"` // nil where the registry is not Harbor, or nobody asked
}

// Push sends the images, charts and files of b to a registry, to the places that Destination names.
//
// One item's failure does not stop the others; the error holds one error for each failed item, or a single one where all
// fail for one reason: errors.Is finds ErrLogin, ErrUnreachable, bundle.ErrDamaged or ctx's error in it. Nothing is sent if
// two items have one destination, or if Harbor can't take a name. An index whose children were not all chosen for the bundle is pushed as it is; where the
// registry refuses that, its tag gets an index of those children that are there, and the summary a warning with both digests. An
// image whose reference pins the index's digest fails instead. Nothing at the registry is ever deleted.
func Push(ctx context.Context, b *bundle.Reader, o PushOptions) (PushSummary, error) {
	return pushFrom(ctx, file{b}, o)
}

// A file is an origin that leaves hashing to the registry, which has to check the digest of every upload and does it beside us
// (distribution specification, "Pushing blobs"). Where it refuses one, blame tells who is wrong.
type file struct{ *bundle.Reader }

// Blob implements origin.
func (f file) Blob(ctx context.Context, d digest.Digest, offset int64) (io.ReadCloser, error) {
	return f.Unhashed(ctx, d, offset)
}

// blame returns what is wrong with the blob in the bundle, or err if that is whole.
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
	p := &pusher{bundle: b, session: s, target: t, options: o}
	if err := p.plan(ctx); err != nil {
		return p.summary(), err
	}
	return p.push(ctx)
}

func (o PushOptions) withDefaults() PushOptions {
	if o.Jobs <= 0 {
		o.Jobs = defaultJobs
	}
	if o.Retries == 0 {
		o.Retries = defaultRetries
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = defaultStall
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Select == nil {
		o.Select = func(bundle.Item) bool { return true }
	}
	return o
}
