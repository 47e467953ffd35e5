package fetch

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Chart is a chart whose archive is in the Store.
type Chart struct {
	Chart manifest.Chart // as the manifest has it
	Pin   manifest.Pin
	// Archive is the packaged chart (.tgz).
	Archive digest.Digest
}

// Found is an image that the manifest does not list, and the place where it was found.
type Found struct {
	Image  manifest.Image
	Places []string
}

// Charts pins the charts of a manifest and brings their archives into the Store. The error is *Errors with every failed
// chart, or the context's; the other charts are still returned, in the manifest's order.
func Charts(ctx context.Context, b *manifest.Bundle, o Options) ([]Chart, error) {
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	failed := &failures{}
	list := s.bring(ctx, b, failed)
	return list, failed.err(ctx, len(b.Charts))
}

// bring pins charts and fetches their archives concurrently.
func (s *session) bring(ctx context.Context, b *manifest.Bundle, failed *failures) []Chart {
	list := make([]Chart, len(b.Charts))
	entries := s.chartEntries(b)
	for i, c := range b.Charts {
		entries[i].resolve = func(ctx context.Context) ([]manifest.Pin, error) {
			pin, err := s.charts.resolve(ctx, c)
			if err != nil {
				return nil, err
			}
			archive, err := s.charts.bringArchive(ctx, pin)
			if err == nil {
				list[i] = Chart{c, pin, archive}
			}
			return nil, err
		}
	}
	s.pinAll(ctx, entries, failed)
	return slices.DeleteFunc(list, func(c Chart) bool { return c.Archive == "" })
}

// bringArchive fetches the blobs of a pinned chart and returns its archive.
func (h *helmCharts) bringArchive(ctx context.Context, pin manifest.Pin) (digest.Digest, error) {
	p, err := h.plan(ctx, pin)
	if err != nil {
		return "", err
	}
	for _, b := range p.blobs {
		_, ok, err := h.cache.Store.Stat(ctx, b.digest)
		if err != nil {
			return "", &upstream.StoreError{Cause: err}
		}
		if ok {
			continue
		}
		if b.size > 0 {
			h.cache.Count(b.size, 0, 0)
		}
		if err := b.fetch(ctx); err != nil {
			return "", err
		}
	}
	if !registries.IsManifest(pin.MediaType) {
		return pin.Digest, nil
	}
	return h.archiveOf(ctx, pin)
}

// archiveOf returns the archive layer of a chart from a registry, after plan has read its manifest.
func (h *helmCharts) archiveOf(ctx context.Context, pin manifest.Pin) (digest.Digest, error) {
	data, ok, err := h.cache.Stored(ctx, pin.Digest, registries.MaxConfig)
	if err != nil || !ok {
		return "", &upstream.StoreError{
			Cause: errors.Join(err, errors.New("the chart's manifest has disappeared from the cache")),
		}
	}
	doc, err := chartManifest(ocispec.Descriptor{Digest: pin.Digest, MediaType: pin.MediaType}, data)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(doc.Layers, isChartArchive)
	if i < 0 {
		return "", errNoArchive
	}
	return doc.Layers[i].Digest, nil
}

// errNoArchive means an artifact of type chart has no chart archive.
var errNoArchive = errors.New("not a Helm chart: there is no chart archive")

func isChartArchive(d ocispec.Descriptor) bool {
	return d.MediaType == chartContent || d.MediaType == "application/tar+gzip"
}

// additional returns the found images that the manifest does not list, each once, and records their places.
func additional(listed []manifest.Image, found []Found, wanted map[string][]string) []manifest.Image {
	own := map[string]bool{}
	for _, img := range listed {
		if ref, err := img.Ref(); err == nil {
			own[ref] = true
		}
	}
	var more []manifest.Image
	for _, f := range found {
		ref, err := f.Image.Ref()
		if err != nil {
			ref = f.Image.Name // resolving it reports the problem
		}
		if own[ref] {
			continue
		}
		if _, twice := wanted[ref]; !twice {
			more = append(more, f.Image)
		}
		wanted[ref] = append(wanted[ref], f.Places...)
	}
	slices.SortFunc(more, func(a, b manifest.Image) int { return strings.Compare(a.Name, b.Name) })
	return more
}
