package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/published"
)

// PublishOptions configure Publish. Only Repository and Tags are required; the other fields are as in PushOptions.
type PublishOptions struct {
	Repository string   // HOST[:PORT]/PATH
	Tags       []string // tags for the bundle, at least one
	Signatures []published.Signature
	Deltas     []Delta // attached to the bundle
	Auth       authn.Keychain
	Transport  http.RoundTripper
	PlainHTTP  bool
	Jobs       int
	Retries    int
	Logger     *slog.Logger
	Progress   func(done, total int64) // bytes; called by one goroutine at a time
}

// A Delta is a file of package delta that makes the published bundle, or the old bundle of another one that does.
type Delta struct {
	published.Delta
	Open func(offset int64) (io.ReadCloser, error)
}

// A PublishSummary describes the outcome of Publish, also as far as it got before an error.
type PublishSummary struct {
	Repository   string                   `json:"repository"` // without scheme
	Digest       digest.Digest            `json:"digest"`     // of the manifest or index: pull oci://REPOSITORY@DIGEST
	Bundle       digest.Digest            `json:"bundle"`     // the bundle's identity
	Tags         []string                 `json:"tags"`
	Moved        map[string]digest.Digest `json:"moved,omitempty"`  // moved tags with their previous digests
	Deltas       []digest.Digest          `json:"deltas,omitempty"` // of the manifests of attached deltas
	BlobsSent    int                      `json:"blobsSent"`
	BlobsPresent int                      `json:"blobsPresent"`
	// of pushed blobs and the manifest; failed attempts do not count
	BytesSent    int64 `json:"bytesSent"`
	BytesPresent int64 `json:"bytesPresent"`
}

// CheckRepository checks the name of a repository, HOST[:PORT]/PATH.
func CheckRepository(s string) error {
	t, err := parseTarget(s)
	if err == nil && t.prefix == "" {
		err = fmt.Errorf("%q is not a repository: write HOST[:PORT]/PATH", withoutUser(s))
	}
	return err
}

// CheckTag checks a tag.
func CheckTag(tag string) error {
	if !tagGrammar.MatchString(tag) {
		return fmt.Errorf("%q is not a tag: use at most %d letters, digits, and _ . - (not first)", tag, maxTagLen)
	}
	return nil
}

// Publish pushes a bundle as one artifact whose layers are the bundle's blobs; see bundle.Reader.Published. Content
// at the registry is not sent again, so a later version costs only its new content, and a repeated run only the
// missing content. A bundle with too many blobs is refused before anything is sent. The tags are set last; the
// summary has their previous digests. Errors match the same classes as Push's.
func Publish(ctx context.Context, b *bundle.Reader, o PublishOptions) (PublishSummary, error) {
	doc, err := published.Of(b, o.Signatures)
	if err != nil {
		return PublishSummary{}, fmt.Errorf("publish to %s: %w", o.Repository, err)
	}
	p := &publisher{bundle: b, options: o, doc: doc, sum: PublishSummary{
		Repository: o.Repository, Digest: digest.FromBytes(doc.Root), Bundle: b.Digest(),
	}}
	if err := p.publish(ctx); err != nil {
		return p.sum, fmt.Errorf("publish to %s: %w", o.Repository, err)
	}
	return p.sum, nil
}

// A publisher is one run of Publish.
type publisher struct {
	bundle  *bundle.Reader
	options PublishOptions
	repo    *repo
	doc     published.Documents
	blobs   []publishedBlob
	total   int64

	mu   sync.Mutex
	done int64
	sum  PublishSummary
}

// A publishedBlob is a blob with its source.
type publishedBlob struct {
	ocispec.Descriptor
	open opener
}

func (p *publisher) publish(ctx context.Context) error {
	o := PushOptions{
		Registry: p.options.Repository, Auth: p.options.Auth, Transport: p.options.Transport,
		PlainHTTP: p.options.PlainHTTP,
		Jobs:      p.options.Jobs, Retries: p.options.Retries, Logger: p.options.Logger,
	}.withDefaults()
	if err := CheckRepository(o.Registry); err != nil {
		return err
	}
	t, err := parseTarget(o.Registry)
	if err != nil {
		return err
	}
	s, err := newSession(ctx, t, o)
	if err != nil {
		return err
	}
	p.repo = s.repo(t.prefix)
	if err := s.login(ctx, p.repo); err != nil {
		return err
	}
	if err := p.collect(ctx); err != nil {
		return err
	}
	there, err := p.repo.manifest(ctx, p.sum.Digest.String(), p.doc.MediaType)
	if err != nil {
		return s.explain(p.repo.name, err)
	}
	if there == p.sum.Digest && len(p.options.Deltas) == 0 { // an existing manifest implies its blobs, see look
		p.count(func(sum *PublishSummary) {
			sum.BlobsPresent, sum.BytesPresent, p.done = len(p.blobs), p.total,
				p.total
		})
	} else if err := p.sendContent(ctx, o.Jobs); err != nil {
		return err
	}
	if err := p.attachDeltas(ctx); err != nil {
		return s.explain(p.repo.name, err)
	}
	for _, tag := range p.options.Tags {
		if err := p.tag(ctx, tag); err != nil {
			return fmt.Errorf("tag %s: %w", tag, s.explain(p.repo.name, err))
		}
	}
	return nil
}

// collect collects the contents of all blobs.
func (p *publisher) collect(ctx context.Context) error {
	index, err := p.bundle.Index().Marshal()
	if err != nil {
		return err
	}
	add := func(d ocispec.Descriptor, open opener) {
		p.blobs = append(p.blobs, publishedBlob{ocispec.Descriptor{Digest: d.Digest, Size: d.Size}, open})
		p.total += d.Size
	}
	bytesOf := func(data []byte) opener {
		return func(offset int64) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data[offset:])), nil }
	}
	add(ocispec.Descriptor{Digest: p.bundle.Digest(), Size: int64(len(index))}, bytesOf(index))
	for _, s := range p.options.Signatures {
		add(ocispec.Descriptor{Digest: digest.FromBytes(s.Data), Size: int64(len(s.Data))}, bytesOf(s.Data))
	}
	for _, d := range p.bundle.Blobs() {
		add(d, func(offset int64) (io.ReadCloser, error) { return p.bundle.Blob(ctx, d.Digest, offset) })
	}
	for i, d := range p.options.Deltas {
		if i == 0 {
			empty := ocispec.DescriptorEmptyJSON
			add(empty, bytesOf(empty.Data))
		}
		add(d.File, d.Open)
	}
	slices.SortStableFunc(p.blobs, func(a, b publishedBlob) int { return int(min(max(b.Size-a.Size, -1), 1)) })
	return nil
}

// sendBlobs sends missing blobs, the largest first. A failed one does not stop the others.
func (p *publisher) sendBlobs(ctx context.Context, jobs int) error {
	inner, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	var g errgroup.Group
	g.SetLimit(jobs)
	errs := make([]error, len(p.blobs))
	for i, b := range p.blobs {
		g.Go(func() error {
			if inner.Err() != nil {
				return nil
			}
			if errs[i] = p.place(inner, b); isFatal(errs[i]) {
				abort(errs[i])
			}
			return nil
		})
	}
	_ = g.Wait() // errors are in errs
	switch cause := context.Cause(inner); {
	case ctx.Err() != nil:
		return fmt.Errorf("%w; pushed content is kept, and running it again continues", context.Cause(ctx))
	case cause != nil:
		return cause
	}
	return errors.Join(errs...)
}

func (p *publisher) place(ctx context.Context, b publishedBlob) error {
	have, err := p.repo.hasBlob(ctx, b.Descriptor)
	if err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, p.repo.explain(p.repo.name, err))
	}
	if have {
		p.count(func(sum *PublishSummary) { sum.BlobsPresent++; sum.BytesPresent += b.Size; p.done += b.Size })
		return nil
	}
	return p.send(ctx, b)
}

func (p *publisher) send(ctx context.Context, b publishedBlob) error {
	m := &meter{advance: func(n int64) { p.count(func(*PublishSummary) { p.done += n }) }}
	_, err := p.repo.sendBlob(ctx, b.Descriptor, "", m.opener(b.open))
	if err != nil {
		m.end(0)
		if errors.Is(err, bundle.ErrDamaged) {
			return err
		}
		return fmt.Errorf("blob %s: %w", b.Digest, p.repo.explain(p.repo.name, err))
	}
	m.end(b.Size)
	p.count(func(sum *PublishSummary) { sum.BlobsSent++; sum.BytesSent += b.Size })
	return nil
}

// sendContent sends the blobs, then the manifests of an index.
func (p *publisher) sendContent(ctx context.Context, jobs int) error {
	if err := p.sendBlobs(ctx, jobs); err != nil {
		return err
	}
	for _, content := range p.doc.Manifests {
		if _, err := p.store(ctx, ocispec.MediaTypeImageManifest, content); err != nil {
			return p.repo.explain(p.repo.name, err)
		}
	}
	return nil
}

// store puts a manifest under its digest, unless the registry has it. listed is as in putManifest.
func (p *publisher) store(ctx context.Context, mediaType string, content []byte) (listed bool, err error) {
	d := digest.FromBytes(content)
	have, err := p.repo.manifest(ctx, d.String(), mediaType)
	if err == nil && have != d {
		listed, err = p.putManifest(ctx, d.String(), mediaType, content)
	}
	if err != nil {
		return false, fmt.Errorf("manifest %s: %w", d, err)
	}
	return listed, nil
}

// attachDeltas puts the manifests of deltas, whose subject is the bundle. Some registries refuse a manifest before
// its subject. Tags are set later, so that clients of a tag find the deltas.
func (p *publisher) attachDeltas(ctx context.Context) error {
	if len(p.options.Deltas) == 0 {
		return nil
	}
	if _, err := p.store(ctx, p.doc.MediaType, p.doc.Root); err != nil {
		return err
	}
	subject := ocispec.Descriptor{MediaType: p.doc.MediaType, Digest: p.sum.Digest, Size: int64(len(p.doc.Root))}
	for _, d := range p.options.Deltas {
		content, err := d.Manifest(subject)
		if err != nil {
			return err
		}
		listed, err := p.store(ctx, ocispec.MediaTypeImageManifest, content)
		if err == nil && !listed {
			err = p.list(ctx, subject.Digest, content)
		}
		if err != nil {
			return fmt.Errorf("delta against bundle %s: %w", d.Old, err)
		}
		p.count(func(sum *PublishSummary) { sum.Deltas = append(sum.Deltas, digest.FromBytes(content)) })
	}
	return nil
}

// list makes sure that clients find the manifest of a delta by its subject.
func (p *publisher) list(ctx context.Context, subject digest.Digest, content []byte) error {
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return err
	}
	entry := listing(ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(content),
		Size: int64(len(content)),
	}, doc)
	return p.repo.listReferrer(ctx, subject, entry, func(tag string, _ digest.Digest, index []byte) error {
		_, err := p.putManifest(ctx, tag, ocispec.MediaTypeImageIndex, index)
		return err
	})
}

// tag points a tag to the manifest, unless it does.
func (p *publisher) tag(ctx context.Context, tag string) error {
	before, err := p.repo.manifest(ctx, tag, p.doc.MediaType)
	if err != nil {
		return err
	}
	if before != p.sum.Digest {
		if err := p.putRoot(ctx, tag); err != nil {
			return err
		}
	}
	p.count(func(sum *PublishSummary) {
		sum.Tags = append(sum.Tags, tag)
		if before != "" && before != sum.Digest {
			if sum.Moved == nil {
				sum.Moved = map[string]digest.Digest{}
			}
			sum.Moved[tag] = before
		}
	})
	return nil
}

// putRoot puts the manifest, or the index, under a tag and then queries the tag: another client may write to it, too.
func (p *publisher) putRoot(ctx context.Context, tag string) error {
	if _, err := p.putManifest(ctx, tag, p.doc.MediaType, p.doc.Root); err != nil {
		return err
	}
	have, err := p.repo.manifest(ctx, tag, p.doc.MediaType)
	if err != nil {
		return err
	}
	if have != p.sum.Digest {
		return fmt.Errorf("digest is %q after the push, want %s: another client writes to it, or the registry changes content", have, p.sum.Digest)
	}
	return nil
}

// putManifest puts a manifest. Blobs that the registry lost are sent again, once.
func (p *publisher) putManifest(ctx context.Context, reference, mediaType string,
	content []byte,
) (listed bool, err error) {
	listed, err = p.repo.putManifest(ctx, reference, mediaType, content)
	if blobsLost(err) && !isIndex(mediaType) {
		if err = p.sendLost(ctx, err); err == nil {
			listed, err = p.repo.putManifest(ctx, reference, mediaType, content)
		}
	}
	if err == nil {
		p.count(func(sum *PublishSummary) { sum.BytesSent += int64(len(content)) })
	}
	return listed, err
}

// sendLost sends, once and without querying them, the blobs that the registry reported present and then missed.
func (p *publisher) sendLost(ctx context.Context, cause error) error {
	lost := lostOf(p.blobs, cause, func(b publishedBlob) digest.Digest { return b.Digest })
	p.repo.logger.WarnContext(ctx, "registry lost blobs; sending them again", "blobs", len(lost))
	for _, b := range lost {
		if err := p.send(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// lostOf returns the blobs whose digest the details of an answer contain, or all if there are none.
func lostOf[T any](all []T, cause error, digestOf func(T) digest.Digest) []T {
	te, _ := asRegistryError(cause)
	lost := slices.DeleteFunc(slices.Clone(all), func(b T) bool {
		named := func(e transport.Diagnostic) bool {
			return strings.Contains(fmt.Sprint(e.Detail),
				digestOf(b).String())
		}
		return !slices.ContainsFunc(te.Errors, named)
	})
	if len(lost) == 0 {
		return all
	}
	return lost
}

// count updates the counters and reports them.
func (p *publisher) count(change func(*PublishSummary)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.sum)
	if p.options.Progress != nil {
		p.options.Progress(p.done, p.total)
	}
}
