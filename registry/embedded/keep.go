package embedded

import (
	"context"
	"errors"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A kept is a registry for distribution's garbage collection, which knows neither subjects nor other digests than
// SHA-256. A manifest whose subject is in its repository counts as tagged, and content that a manifest names by
// another digest is named by its own, too.
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
	return keptRepository{r, k.links, &tagIndex{}}, err
}

type keptRepository struct {
	distribution.Repository
	links links
	index *tagIndex
}

// A tagIndex holds the tags of a repository. It is filled at the first use, because distribution asks for the tags of
// each manifest and reads all of them each time.
type tagIndex struct {
	read bool
	all  []string
	tags map[digest.Digest][]string
}

// fill reads the tags once. A repository may have none.
func (x *tagIndex) fill(ctx context.Context, service distribution.TagService) error {
	if x.read {
		return nil
	}
	all, err := service.All(ctx)
	if err != nil && !errors.As(err, new(distribution.ErrRepositoryUnknown)) {
		return err
	}
	x.all, x.tags = all, make(map[digest.Digest][]string, len(all))
	for _, tag := range all {
		desc, err := service.Get(ctx, tag)
		if errors.As(err, new(distribution.ErrTagUnknown)) {
			continue
		}
		if err != nil {
			return err
		}
		x.tags[desc.Digest] = append(x.tags[desc.Digest], tag)
	}
	x.read = true
	return nil
}

// Manifests implements distribution.Repository.
func (r keptRepository) Manifests(ctx context.Context,
	options ...distribution.ManifestServiceOption,
) (distribution.ManifestService, error) {
	s, err := r.Repository.Manifests(ctx, options...)
	if err != nil {
		return nil, err
	}
	return keptManifests{s, s.(distribution.ManifestEnumerator), r}, nil
}

// Blobs implements distribution.Repository.
func (r keptRepository) Blobs(ctx context.Context) distribution.BlobStore {
	b := r.Repository.Blobs(ctx)
	return keptBlobs{b, b.(distribution.BlobEnumerator)}
}

// keptBlobs enumerates no blobs of a repository that never had one, such as one with a sparse index alone.
// Distribution's garbage collection fails there.
type keptBlobs struct {
	distribution.BlobStore
	enumerator distribution.BlobEnumerator
}

// Enumerate implements distribution.BlobEnumerator.
func (b keptBlobs) Enumerate(ctx context.Context, ingester func(digest.Digest) error) error {
	err := b.enumerator.Enumerate(ctx, ingester)
	if errors.As(err, new(driver.PathNotFoundError)) {
		return nil
	}
	return err
}

// Tags implements distribution.Repository.
func (r keptRepository) Tags(ctx context.Context) distribution.TagService {
	return keptTags{r.Repository.Tags(ctx), r}
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
func (s keptManifests) Get(ctx context.Context, d digest.Digest,
	options ...distribution.ManifestServiceOption,
) (distribution.Manifest, error) {
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
	repository keptRepository
}

// Lookup implements distribution.TagService. A referrer without a tag has its subject's digest for one.
func (t keptTags) Lookup(ctx context.Context, d ocispec.Descriptor) ([]string, error) {
	index := t.repository.index
	if err := index.fill(ctx, t.TagService); err != nil || len(index.tags[d.Digest]) > 0 {
		return index.tags[d.Digest], err
	}
	service, err := t.repository.Repository.Manifests(ctx)
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

// All implements distribution.TagService. Distribution asks for each manifest without a tag, and does not remove
// those of a repository whose tags it cannot list.
func (t keptTags) All(ctx context.Context) ([]string, error) {
	err := t.repository.index.fill(ctx, t.TagService)
	return t.repository.index.all, err
}
