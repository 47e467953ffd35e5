package registries

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/web"
)

// Bounds on one image's referrers: far above published images, and low enough that a hostile registry cannot fill the
// disk.
const (
	maxReferrers      = 1000 // of one image, including those of its children and of other referrers
	maxReferrerPages  = 100  // of one list
	maxReferrerLevels = 4    // referrers of referrers: a signature of an SBOM is on the second
	maxReferrer       = 1 << 30
)

// A referrersAPI is the state of a host's referrers API. Hosts without it are asked once.
type referrersAPI struct {
	mu     sync.Mutex
	asked  bool
	absent bool
	broken error // the error of an API that failed or was silent; it is not called again
}

// referrers lists the manifests with this subject, by the OCI distribution specification 1.1: from the referrers API,
// or from the index under the fallback tag if the registry has no such API. An API that fails may be one that the
// registry lacks: some answer everything unknown with a refusal. The error is then returned with the tag's list.
func (l *lookup) referrers(ctx context.Context, subject digest.Digest) ([]ocispec.Descriptor, error) {
	list, ok, failed := l.repo.askReferrers(ctx, subject)
	if ok || ctx.Err() != nil {
		return list, failed
	}
	list, err := l.tagged(ctx, subject)
	return list, errors.Join(failed, err)
}

// tagged lists the manifests in the index under the fallback tag.
func (l *lookup) tagged(ctx context.Context, subject digest.Digest) ([]ocispec.Descriptor, error) {
	tag := referrersTag(subject)
	desc, data, ok, err := l.repo.tagged(ctx, tag)
	if err != nil || !ok {
		return nil, err
	}
	if !IsIndex(desc.MediaType) {
		return nil, nil // an unrelated image with such a tag
	}
	doc, err := ParseManifest(desc, data)
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", tag, err)
	}
	return doc.Manifests, nil
}

// referrersTag returns the fallback tag in place of the referrers API (OCI distribution specification 1.1, "Referrers
// Tag Schema"). Cosign's tags begin with it.
func referrersTag(subject digest.Digest) string {
	return subject.Algorithm().String() + "-" + subject.Encoded()
}

// askReferrers calls the referrers API; ok is false if there is none. The first request to a host is sent alone.
func (r *Repository) askReferrers(ctx context.Context,
	subject digest.Digest,
) (list []ocispec.Descriptor, ok bool, err error) {
	api := r.api
	api.mu.Lock()
	if api.asked {
		api.mu.Unlock()
	} else {
		defer api.mu.Unlock()
	}
	switch {
	case api.broken != nil:
		return nil, false, api.broken
	case api.absent:
		return nil, false, nil
	}
	first := !api.asked
	list, ok, err = r.listReferrers(ctx, subject)
	if first && ctx.Err() == nil {
		api.asked, api.absent = true, !ok && err == nil
		if status := web.Status(err); err != nil && (status == nil || web.PassingStatus(status.Code)) &&
			!upstream.IsLie(err) {
			api.broken = err
		}
	}
	return list, ok, err
}

func lied(format string, args ...any) error {
	return &upstream.LieError{Err: fmt.Errorf(format, args...)}
}

// listReferrers requests all pages from one place after the other.
func (r *Repository) listReferrers(ctx context.Context,
	subject digest.Digest,
) (list []ocispec.Descriptor, ok bool, err error) {
	err = r.loader.Sender.InTurn(ctx, r.Peers, func(i int) error {
		list, err = r.endpoints[i].listReferrers(ctx, r.url("referrers", subject.String()), subject)
		return err
	})
	if hasNoAPI(err) {
		return nil, false, nil
	}
	return list, err == nil, err
}

// listReferrers reads all pages. It ignores OCI-Filters-Applied, because it requests no filter.
func (e *endpoint) listReferrers(ctx context.Context, u *url.URL, subject digest.Digest) ([]ocispec.Descriptor, error) {
	var all []ocispec.Descriptor
	u = e.at(u)
	client, err := e.login(ctx)
	if err != nil {
		return nil, err
	}
	client = e.peer.Client(&noAPIElsewhere{next: client.Transport, path: u.Path})
	for n := range maxReferrerPages {
		data, header, err := e.askReferrers(ctx, client, u)
		switch {
		case err == nil && n == 0 && mediaType(header) != ocispec.MediaTypeImageIndex:
			err = &web.StatusError{
				Code:   http.StatusNotFound,
				Detail: "the address serves something else than the referrers API",
			}
			return nil, fmt.Errorf("referrers of %s: %w", subject, err)
		case n > 0 && hasNoAPI(err):
			return nil, lied("referrers of %s: the next page of the list is missing", subject)
		case err != nil:
			return nil, fmt.Errorf("referrers of %s: %w", subject, err)
		}
		var page struct {
			Manifests []ocispec.Descriptor `json:"manifests"`
		}
		if err := capped.JSON(data, MaxValues, &page); err != nil {
			return nil, lied("referrers of %s: %w", subject, err)
		}
		if all = append(all, page.Manifests...); len(all) > maxReferrers {
			return nil, lied("referrers of %s: more than %d", subject, maxReferrers)
		}
		to, err := nextURL(u, header)
		if err != nil {
			return nil, lied("referrers of %s: %w", subject, err)
		}
		if to == nil {
			return all, nil
		}
		u = to
	}
	return nil, lied("referrers of %s: the list has more than %d pages", subject, maxReferrerPages)
}

// askReferrers asks for one page with a client of the caller. A server that is silent is asked once: a registry may
// leave such questions without an answer, and images can do without referrers.
func (e *endpoint) askReferrers(ctx context.Context, client *http.Client,
	u *url.URL,
) (data []byte, header http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageIndex)
	err = e.sender.Retry(ctx, e.peer, u.Redacted(), func() error {
		data, header, err = e.sender.Ask(ctx, e.peer, client, req, maxManifest)
		if _, silent := errors.AsType[*web.StallError](err); silent {
			return &silentError{err}
		}
		return err
	})
	if err != nil {
		return nil, nil, e.explain(err)
	}
	return data, header, nil
}

// A silentError is the silence of a server that is not asked again.
type silentError struct{ error }

func (*silentError) CanPass() bool   { return false }
func (e *silentError) Unwrap() error { return e.error }

// noAPIElsewhere answers for a referrers API that redirects and gets no list there: the registry has no such API.
// GHCR, for example, leads to a page for people, which limits requests for minutes.
type noAPIElsewhere struct {
	next http.RoundTripper
	path string // of the API
}

func (n *noAPIElsewhere) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	// A registry may lead to the same API elsewhere, as registry.k8s.io does: its refusals and failures count, and
	// are retried.
	isAPI := strings.HasPrefix(req.URL.Path, "/v2/") && path.Base(req.URL.Path) == path.Base(n.path)
	if isAPI || req.Context().Err() != nil {
		return resp, err
	}
	if err != nil {
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: req},
			nil
	}
	if resp.StatusCode >= http.StatusBadRequest {
		resp.StatusCode = http.StatusNotFound
	}
	return resp, nil
}

// hasNoAPI reports whether an answer is that of a registry without the referrers API: 404 by the specification, or the
// answer of older registries to unknown addresses.
func hasNoAPI(err error) bool {
	return upstream.Lacking(err, http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed,
		http.StatusNotAcceptable, http.StatusNotImplemented)
}

// tagged returns the manifest of a tag, if any. The repository's list of tags would answer that for all tags at once,
// but a caching proxy lists only tags pulled through it before.
func (r *Repository) tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, bool, error) {
	u := r.url("manifests", tag)
	if !r.headless.Load() {
		_, err := r.ask(ctx, u)
		if upstream.Lacking(err, http.StatusNotFound) {
			return ocispec.Descriptor{}, nil, false, nil
		}
		if err != nil && web.Status(err) == nil {
			return ocispec.Descriptor{}, nil, false, err
		}
	}
	desc, data, err := r.get(ctx, u, ocispec.Descriptor{Size: -1})
	if r.headless.Load() && upstream.Lacking(err, http.StatusNotFound) {
		return ocispec.Descriptor{}, nil, false, nil
	}
	return desc, data, err == nil, err
}

// cosignSuffixes are the suffixes of the tags under which cosign attaches signatures, attestations and SBOMs (its
// specs/SIGNATURE_SPEC.md and SBOM_SPEC.md).
func cosignSuffixes(signaturesOnly bool) []string {
	if signaturesOnly {
		return []string{".sig"}
	}
	return []string{".sig", ".att", ".sbom"}
}

// artifactType returns a referrer's own type, else its config's (OCI image specification, "Determining the artifact
// type").
func (d Manifest) artifactType() string {
	if d.ArtifactType == "" && d.Config != nil {
		return d.Config.MediaType
	}
	return d.ArtifactType
}

// A Referrer is an artifact attached to a manifest or index.
type Referrer struct {
	Desc    ocispec.Descriptor // its manifest, with the artifact type
	Subject digest.Digest
	tag     string // the tag that attaches it, if it has no subject
	Doc     Manifest
	Image   Image
	Size    int64 // size of all its blobs, in bytes
}

// Ref returns the referrer's reference in a repository with that name.
func (a Referrer) Ref(repository string) string {
	if a.tag != "" {
		return repository + ":" + a.tag
	}
	return repository + "@" + a.Desc.Digest.String()
}

// A lookup finds the referrers of an image.
type lookup struct {
	repo           *Repository
	signaturesOnly bool

	mu       sync.Mutex
	found    []Referrer
	problems []error
}

// run searches level by level: first the image's manifests, then the referrers found. Problems do not end it.
func (l *lookup) run(ctx context.Context, subjects []ocispec.Descriptor) {
	known := map[digest.Digest]bool{}
	for level := 0; len(subjects) > 0 && ctx.Err() == nil; level++ {
		if level == maxReferrerLevels {
			l.note(fmt.Errorf("referrers of referrers on more than %d levels are not followed", maxReferrerLevels))
			return
		}
		before := len(l.found)
		var group sync.WaitGroup
		for _, d := range subjects {
			if known[d.Digest] {
				continue
			}
			known[d.Digest] = true
			l.subject(ctx, &group, d.Digest)
		}
		group.Wait()
		subjects = subjects[:0:0]
		for _, a := range l.found[before:] {
			subjects = append(subjects, a.Desc)
		}
	}
}

// subject looks up all referrers of one manifest, concurrently; the peer's gate bounds the requests.
func (l *lookup) subject(ctx context.Context, group *sync.WaitGroup, subject digest.Digest) {
	group.Go(func() {
		list, err := l.referrers(ctx, subject)
		l.note(err)
		for _, d := range list {
			if err := CheckDescriptor(d); err != nil {
				l.note(fmt.Errorf("referrers of %s: %w", subject, err))
				continue
			}
			l.take(ctx, d, subject, "")
		}
	})
	for _, suffix := range cosignSuffixes(l.signaturesOnly) {
		group.Go(func() {
			tag := referrersTag(subject) + suffix
			desc, _, ok, err := l.repo.tagged(ctx, tag)
			if err != nil {
				l.note(err)
			} else if ok {
				l.take(ctx, desc, subject, tag)
			}
		})
	}
}

func (l *lookup) note(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < maxReferrers {
		l.problems = append(l.problems, err)
	}
}

// problem returns the first few problems that made the lookup incomplete; nil if there were none.
func (l *lookup) problem() error {
	const most = 5
	if len(l.problems) <= most {
		return errors.Join(l.problems...)
	}
	return errors.Join(append(slices.Clone(l.problems[:most]), fmt.Errorf("and %d more", len(l.problems)-most))...)
}

// take reads one referrer and keeps it if it matches its description.
func (l *lookup) take(ctx context.Context, desc ocispec.Descriptor, subject digest.Digest, tag string) {
	a, err := l.read(ctx, ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}, subject,
		tag)
	if err != nil {
		l.note(fmt.Errorf("referrer %s of %s: %w", desc.Digest, subject, err))
		return
	}
	if l.signaturesOnly && !a.isSignature() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.found, func(b Referrer) bool { return b.Desc.Digest == a.Desc.Digest && b.tag == a.tag }) {
		return
	}
	if len(l.found) >= maxReferrers {
		l.problems = append(l.problems, fmt.Errorf("referrer %s of %s: more than %d are not included", desc.Digest,
			subject, maxReferrers))
		return
	}
	l.found = append(l.found, a)
}

func (l *lookup) read(ctx context.Context, desc ocispec.Descriptor, subject digest.Digest,
	tag string,
) (Referrer, error) {
	img, err := (&imageWalk{repo: l.repo, all: true}).read(ctx, desc)
	if err != nil {
		return Referrer{}, err
	}
	desc, doc, err := l.repo.document(ctx, desc)
	if err != nil {
		return Referrer{}, err
	}
	a := Referrer{Desc: desc, Subject: subject, tag: tag, Doc: doc, Size: desc.Size, Image: img}
	a.Desc.ArtifactType = doc.artifactType()
	for _, b := range img.Blobs {
		a.Size += b.Size
	}
	switch {
	case tag == "" && (doc.Subject == nil || doc.Subject.Digest != subject):
		return a, lied("the registry lists it, but it is attached to another manifest")
	case !IsIndex(desc.MediaType) && doc.Config == nil:
		return a, fmt.Errorf("a manifest of type %s without a config is not carried: attach it anew", desc.MediaType)
	case a.Size > maxReferrer:
		return a, fmt.Errorf("%d bytes exceed the limit of %d (%s)", a.Size, maxReferrer,
			upstream.Printable(a.Desc.ArtifactType))
	}
	return a, nil
}

// Attached finds the referrers of an image, with those of its other manifests and of referrers, or the signatures among
// them only. problem is why some may be missing.
func (r *Repository) Attached(ctx context.Context, image []ocispec.Descriptor,
	signaturesOnly bool,
) (found []Referrer, problem error) {
	l := &lookup{repo: r, signaturesOnly: signaturesOnly}
	l.run(ctx, image)
	return l.found, l.problem()
}

// Listed lists the manifests with this subject. The list is the registry's claim.
func (r *Repository) Listed(ctx context.Context, subject digest.Digest) ([]ocispec.Descriptor, error) {
	return (&lookup{repo: r}).referrers(ctx, subject)
}

// Referrer reads one referrer of a subject, attached by a tag or, with tag "", by its own manifest.
func (r *Repository) Referrer(ctx context.Context, desc ocispec.Descriptor, subject digest.Digest,
	tag string,
) (Referrer, error) {
	return (&lookup{repo: r}).read(ctx, desc, subject, tag)
}

// IsSignatureLayer reports whether a layer is a signature of cosign or a bundle of Sigstore.
func IsSignatureLayer(layer ocispec.Descriptor) bool {
	return layer.MediaType == trust.MediaTypeSimpleSigning || layer.MediaType == trust.MediaTypeBundle
}

// isSignature reports whether a referrer's own description is that of a signature.
func (a Referrer) isSignature() bool {
	switch a.Desc.ArtifactType {
	case "application/vnd.cncf.notary.signature", "application/vnd.dev.cosign.artifact.sig.v1+json":
		return true
	case trust.MediaTypeBundle: // may be an attestation, too
		predicate := a.Doc.Annotations["dev.sigstore.bundle.predicateType"]
		return predicate == "" || predicate == trust.PredicateSign
	}
	return slices.ContainsFunc(a.Doc.Layers, IsSignatureLayer)
}
