package embedded

import (
	"context"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A kept is a registry for distribution's garbage collection, which knows neither subjects nor other digests than SHA-256. A manifest whose
// subject is in its repository counts as tagged, and content that a manifest names by another digest is named by its own, too.
type kept struct {
	distribution.Namespace
	distribution.RepositoryEnumerator
	links links
}

func keep(registry distribution.Namespace, l links) kept {
	return kept{registry, registry.(distribution.RepositoryEnumerator), l}
}

// Repository implements distribution.Namespace.
func (k kept) Repository(ctx context.Context, name reference.Named) (distribution.Repository, error) {
	r, err := k.Namespace.Repository(ctx, name)
	return keptRepository{r, k.links}, err
}

type keptRepository struct {
	distribution.Repository
	links links
}

// Manifests implements distribution.Repository.
func (r keptRepository) Manifests(ctx context.Context, options ...distribution.ManifestServiceOption) (distribution.ManifestService, error) {
	s, err := r.Repository.Manifests(ctx, options...)
	if err != nil {
		return nil, err
	}
	return keptManifests{s, s.(distribution.ManifestEnumerator), r}, nil
}

// Tags implements distribution.Repository.
func (r keptRepository) Tags(ctx context.Context) distribution.TagService {
	return keptTags{r.Repository.Tags(ctx), r.Repository}
}

// canonical returns the digest that a content lies under, or the given one if the repository does not have it.
func (r keptRepository) canonical(ctx context.Context, d digest.Digest) digest.Digest {
	for _, dir := range []linkDir{layers, revisions} {
		if own, err := r.links.canonical(ctx, r.Named().Name(), dir, d); err == nil {
			return own
		}
	}
	return d
}

type keptManifests struct {
	distribution.ManifestService
	distribution.ManifestEnumerator
	repository keptRepository
}

// Get implements distribution.ManifestService.
func (s keptManifests) Get(ctx context.Context, d digest.Digest, options ...distribution.ManifestServiceOption) (distribution.Manifest, error) {
	m, err := s.ManifestService.Get(ctx, d, options...)
	if err != nil {
		return nil, err
	}
	named := m.References()
	for _, d := range m.References() {
		if isAlias(d.Digest) {
			d.Digest = s.repository.canonical(ctx, d.Digest)
			named = append(named, d)
		}
	}
	return keptManifest{m, named}, nil
}

type keptManifest struct {
	distribution.Manifest
	named []ocispec.Descriptor
}

// References implements distribution.Manifest.
func (m keptManifest) References() []ocispec.Descriptor { return m.named }

type keptTags struct {
	distribution.TagService
	repository distribution.Repository
}

// Lookup implements distribution.TagService. A referrer without a tag has its subject's digest for one.
func (t keptTags) Lookup(ctx context.Context, d ocispec.Descriptor) ([]string, error) {
	tags, err := t.TagService.Lookup(ctx, d)
	if err != nil || len(tags) > 0 {
		return tags, err
	}
	service, err := t.repository.Manifests(ctx)
	if err != nil {
		return nil, err
	}
	doc, _, err := manifestDocument(ctx, service, d.Digest)
	if err != nil || doc.Subject == nil {
		return nil, err
	}
	if ok, err := service.Exists(ctx, doc.Subject.Digest); err != nil || !ok {
		return nil, err
	}
	return []string{doc.Subject.Digest.String()}, nil
}
