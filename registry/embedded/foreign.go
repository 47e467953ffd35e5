package embedded

import (
	"context"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3/manifest/ocischema"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// undistributed are the types of layers that a registry need not have (image specification, "Non-Distributable
// Layers").
func undistributed(mediaType string) bool {
	return slices.Contains([]string{
		ocispec.MediaTypeImageLayerNonDistributable,     //nolint:staticcheck // deprecated, and in use
		ocispec.MediaTypeImageLayerNonDistributableGzip, //nolint:staticcheck // deprecated, and in use
		ocispec.MediaTypeImageLayerNonDistributableZstd, //nolint:staticcheck // deprecated, and in use
	}, mediaType)
}

// foreign reports whether a manifest has layers that are not distributed and lie nowhere: distribution takes such
// layers only with addresses.
func foreign(doc document) bool {
	return slices.ContainsFunc(doc.Layers,
		func(l ocispec.Descriptor) bool { return undistributed(l.MediaType) && len(l.URLs) == 0 })
}

// putForeign stores a manifest with layers that are not distributed. Everything else that it names must be in the
// repository.
func (r *Registry) putForeign(w *reply, req *http.Request, at place, data []byte) {
	stored, missing, err := r.storeForeign(req.Context(), at, data)
	switch {
	case err != nil:
		answerError(w, http.StatusBadRequest, "MANIFEST_INVALID", err.Error())
	case missing != "":
		answerError(w, http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "the repository does not have "+missing.String())
	default:
		w.Header().Set("Location", place{at.repo, manifests, stored.String()}.path())
		w.Header().Set("Docker-Content-Digest", stored.String())
		w.WriteHeader(http.StatusCreated)
	}
}

func (r *Registry) storeForeign(ctx context.Context, at place, data []byte) (stored, missing digest.Digest, err error) {
	named, err := reference.WithName(at.repo)
	if err != nil {
		return "", "", errName
	}
	repository, err := r.storage.Repository(ctx, named)
	if err != nil {
		return "", "", err
	}
	m := new(ocischema.DeserializedManifest)
	if err := m.UnmarshalJSON(data); err != nil {
		return "", "", err
	}
	for _, d := range m.References() {
		if undistributed(d.MediaType) {
			continue
		}
		if _, err := repository.Blobs(ctx).Stat(ctx, d.Digest); err != nil {
			return "", d.Digest, nil //nolint:nilerr // the caller names it
		}
	}
	service, err := repository.Manifests(ctx, storage.SkipLayerVerification())
	if err != nil {
		return "", "", err
	}
	if stored, err = service.Put(ctx, m); err != nil || at.digest() != "" {
		return stored, "", err
	}
	return stored, "", repository.Tags(ctx).Tag(ctx, at.ref,
		ocispec.Descriptor{Digest: stored, MediaType: ocispec.MediaTypeImageManifest, Size: int64(len(data))})
}
