package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// pageOfReferrers bounds the referrers in one answer, so that it stays below the bound of a manifest.
const pageOfReferrers = 500

// subjects knows the referrers of each repository. A repository's manifests are read at the first question about it:
// content that was stored by another program counts, and nothing is kept on disk that could be wrong. It is safe for
// concurrent use.
type subjects struct {
	registry distribution.Namespace
	links    links

	mu    sync.Mutex
	repos map[string]map[digest.Digest][]ocispec.Descriptor // by repository and subject
}

func newSubjects(registry distribution.Namespace, l links) *subjects {
	return &subjects{registry: registry, links: l, repos: map[string]map[digest.Digest][]ocispec.Descriptor{}}
}

// add records a new referrer, if the repository was read already.
func (s *subjects) add(repo string, subject digest.Digest, d ocispec.Descriptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.repos[repo]; known != nil && !slices.ContainsFunc(known[subject],
		func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }) {
		known[subject] = append(known[subject], d)
	}
}

// of returns the referrers of a subject that are in the repository, by their digests.
func (s *subjects) of(ctx context.Context, repo string, subject digest.Digest) ([]ocispec.Descriptor, error) {
	named, err := reference.WithName(repo)
	if err != nil {
		return nil, errName
	}
	r, err := s.registry.Repository(ctx, named)
	if err != nil {
		return nil, err
	}
	service, err := r.Manifests(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.repos[repo]
	if known == nil {
		if known, err = s.read(ctx, repo, service); err != nil {
			return nil, err
		}
		if len(known) > 0 {
			s.repos[repo] = known
		}
	}
	var found []ocispec.Descriptor
	for _, d := range known[subject] {
		ok, err := service.Exists(ctx, d.Digest)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a,
		b ocispec.Descriptor,
	) int {
		return strings.Compare(a.Digest.String(), b.Digest.String())
	})
	return found, nil
}

// read finds the referrers among all manifests of a repository.
func (s *subjects) read(ctx context.Context, repo string,
	service distribution.ManifestService,
) (map[digest.Digest][]ocispec.Descriptor, error) {
	found := map[digest.Digest][]ocispec.Descriptor{}
	seen := map[digest.Digest]bool{}
	err := service.(distribution.ManifestEnumerator).Enumerate(ctx, func(d digest.Digest) error {
		if seen[d] || ctx.Err() != nil {
			return ctx.Err()
		}
		seen[d] = true
		doc, desc, err := manifestDocument(ctx, service, d)
		if err != nil || doc.Subject == nil {
			return err
		}
		if alias := s.links.aliasOf(ctx, repo, d); alias != "" {
			desc.Digest = alias
		}
		found[doc.Subject.Digest] = append(found[doc.Subject.Digest], listed(desc, doc))
		return nil
	})
	if errors.As(err, new(driver.PathNotFoundError)) {
		return nil, nil // no such repository, or nothing in it
	}
	return found, err
}

// manifestDocument reads a manifest. One that cannot be read as any is empty.
func manifestDocument(ctx context.Context, service distribution.ManifestService,
	d digest.Digest,
) (document, ocispec.Descriptor, error) {
	m, err := service.Get(ctx, d)
	if err != nil {
		if ctx.Err() != nil {
			return document{}, ocispec.Descriptor{}, ctx.Err()
		}
		return document{}, ocispec.Descriptor{}, nil
	}
	mediaType, data, err := m.Payload()
	if err != nil {
		return document{}, ocispec.Descriptor{}, err
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return document{}, ocispec.Descriptor{}, nil //nolint:nilerr // no manifest that has a subject
	}
	return doc, ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}, nil
}

// listed returns a manifest's entry in the list of its subject's referrers (distribution specification 1.1, "Listing
// Referrers").
func listed(d ocispec.Descriptor, doc document) ocispec.Descriptor {
	d.ArtifactType, d.Annotations = doc.ArtifactType, doc.Annotations
	if d.ArtifactType == "" && doc.Config != nil {
		d.ArtifactType = doc.Config.MediaType
	}
	if doc.MediaType != "" {
		d.MediaType = doc.MediaType
	}
	return d
}

// listReferrers answers with a page of the referrers of a digest, also of one that the repository does not have.
func (r *Registry) listReferrers(w http.ResponseWriter, req *http.Request, at place) {
	subject := at.digest()
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		answerError(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "referrers are listed with GET")
		return
	case subject == "":
		answerError(w, http.StatusBadRequest, "DIGEST_INVALID", "not a digest")
		return
	}
	found, err := r.subjects.of(req.Context(), at.repo, subject)
	switch {
	case errors.Is(err, errName):
		answerError(w, http.StatusBadRequest, "NAME_INVALID", err.Error())
		return
	case err != nil:
		r.log.Error("the referrers of a manifest cannot be listed", "repository", at.repo, "subject", subject, "error",
			err)
		answerError(w, http.StatusInternalServerError, "UNKNOWN", "the referrers cannot be listed")
		return
	}
	query := req.URL.Query()
	if of := query.Get("artifactType"); of != "" {
		found = slices.DeleteFunc(found, func(d ocispec.Descriptor) bool { return d.ArtifactType != of })
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	last := query.Get("last")
	found = slices.DeleteFunc(found, func(d ocispec.Descriptor) bool { return last != "" && d.Digest.String() <= last })
	if len(found) > pageOfReferrers {
		found = found[:pageOfReferrers]
		query.Set("last", found[pageOfReferrers-1].Digest.String())
		next := url.URL{Path: at.path(), RawQuery: query.Encode()}
		w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
	}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: found,
	}
	if found == nil {
		index.Manifests = []ocispec.Descriptor{}
	}
	data, err := json.Marshal(index)
	if err != nil {
		answerError(w, http.StatusInternalServerError, "UNKNOWN", "the referrers cannot be listed")
		return
	}
	w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
	_, _ = w.Write(data) // the client may be gone
}
