package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// isRegistryAddress reports whether the address of a chart is in a registry.
func isRegistryAddress(address string) bool { return strings.HasPrefix(address, "oci://") }

// registryAddress parses oci://host/path[:tag][@digest], as indexes of Helm repositories have it. The reference is
// the digest, else the tag, "" if there is neither.
func registryAddress(address string) (repo name.Repository, reference string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return repo, "", errors.New("not a URL") // url's error contains the whole URL, perhaps with a password
	}
	if u.User != nil {
		return repo, "", fmt.Errorf("%s: the address has a login in it; log in with kkbundle login %s",
			upstream.Printable(u.Redacted()), upstream.Printable(u.Host))
	}
	rest, pinned, _ := strings.Cut(u.Host+u.Path, "@")
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, reference = rest[:i], asTag(rest[i+1:])
	}
	if pinned != "" {
		reference = pinned
		if err := upstream.CheckDigest(digest.Digest(pinned)); err != nil {
			return repo, "", fmt.Errorf("%s: %w", upstream.Printable(address), err)
		}
	}
	if repo, err = name.NewRepository(rest, name.StrictValidation); err != nil {
		return repo, "", fmt.Errorf("%s is not an OCI reference: %w", upstream.Printable(address), err)
	}
	return repo, reference, nil
}

// pinIndexed pins a chart that the index of its repository has in a registry, as Bitnami's does. As for any chart of
// a repository, the pin is that of the archive: its digest is the one in the index, which must agree, and the chart's
// artifact is made of it.
func (h *helmCharts) pinIndexed(ctx context.Context, pin manifest.Pin, known digest.Digest) (manifest.Pin, error) {
	home, reference, err := registryAddress(pin.URL)
	if err != nil {
		return pin, err
	}
	repo, err := h.registries.Repository(home)
	if err != nil {
		return pin, err
	}
	root, data, err := repo.Named(ctx, cmp.Or(reference, asTag(pin.Version)))
	if err != nil {
		return pin, err
	}
	_, doc, err := chartOf(ctx, repo, root, data)
	if err != nil {
		return pin, fmt.Errorf("%s: %w", upstream.Printable(pin.URL), err)
	}
	archive, signed, err := chartLayers(doc)
	if err != nil {
		return pin, fmt.Errorf("%s: %w", upstream.Printable(pin.URL), err)
	}
	switch {
	case known == "" && pin.Verified == manifest.VerifiedUpstream:
		pin.Verified = vouches(repo.Peers) // the index says where the chart is, the registry what it is
	case known != "" && known != archive.Digest:
		return pin, fmt.Errorf("%s has an archive with digest %s, but the index says %s: ask its publisher which one is right; with the registry as repo (oci://…) the index is not used",
			upstream.Printable(pin.URL), archive.Digest, known)
	}
	pin.Digest, pin.Size, pin.Provenance = archive.Digest, archive.Size, signed.Digest
	if signed.Digest == "" {
		return pin, nil
	}
	return pin, repo.Bring(ctx, signed.Digest, signed.Size)
}

// indexedDownloads is downloads for an archive in a registry.
func (h *helmCharts) indexedDownloads(pin manifest.Pin) (archive, signed *upstream.Download, err error) {
	home, _, err := registryAddress(pin.URL)
	if err != nil {
		return nil, nil, err
	}
	repo, err := h.registries.Repository(home)
	if err != nil {
		return nil, nil, err
	}
	if pin.Provenance != "" {
		signed = repo.Blob(pin.Provenance, -1)
	}
	return repo.Blob(pin.Digest, pinnedSize(pin)), signed, nil
}

// chartLayers returns the layers of a chart: its archive and its provenance file, the zero value if it has none.
func chartLayers(m registries.Manifest) (archive, signed ocispec.Descriptor, err error) {
	i := slices.IndexFunc(m.Layers, isChartArchive)
	if i < 0 {
		return archive, signed, errNoArchive
	}
	archive = m.Layers[i]
	if i = slices.IndexFunc(m.Layers,
		func(d ocispec.Descriptor) bool { return d.MediaType == chartProvenance }); i >= 0 {
		signed = m.Layers[i]
	}
	if signed.Size > maxProvenance {
		return archive, signed, fmt.Errorf("provenance file: %d bytes; at most %d are read", signed.Size, maxProvenance)
	}
	return archive, signed, nil
}
