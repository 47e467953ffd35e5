package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	maxDeltas   = 16 // of one bundle; further ones are ignored
	maxAttempts = 2  // routes that are tried before the blobs are downloaded
)

// useDeltas opens the bundle that published deltas make of a local bundle, if they are smaller than the missing
// blobs. Without such deltas, or if they cannot be used, the blobs will be downloaded.
func (p *pulling) useDeltas(ctx context.Context, missing int64) error {
	if len(p.Have) == 0 || missing == 0 {
		return nil
	}
	offers, err := p.offers(ctx)
	if err != nil {
		if fatal(ctx, err) {
			return err
		}
		p.View.Note("the registry does not list deltas (%s); downloading blobs", plain.Line(err.Error()))
		return nil
	}
	for range maxAttempts {
		route := delta.Route(p.identities(), p.published.Index.Digest, slices.Collect(maps.Keys(offers)), missing)
		if route == nil {
			break
		}
		err := p.useRoute(ctx, route, offers, missing)
		if err == nil || fatal(ctx, err) {
			return err
		}
		p.View.Note("the delta cannot be used (%s)", plain.Line(err.Error()))
		for _, o := range route {
			delete(offers, o)
		}
	}
	if len(offers) > 0 {
		p.View.Note("no published delta fits: none is both smaller than the missing blobs (%s) and made against a bundle of --have", plain.Size(missing))
	}
	return nil
}

// fatal reports whether an error about a delta ends the pull: it was interrupted, or a damaged copy in the cache is
// dropped first.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || len(cache.EntryErrors(err)) > 0
}

// offers returns the deltas attached to the bundle, with their files.
func (p *pulling) offers(ctx context.Context) (map[delta.Offer]ocispec.Descriptor, error) {
	list, err := p.artifact.Referrers(ctx)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(slices.Clone(list),
		func(d ocispec.Descriptor) bool { return d.ArtifactType != published.ArtifactTypeDelta })
	offers := map[delta.Offer]ocispec.Descriptor{}
	for _, entry := range list[:min(len(list), maxDeltas)] {
		data, err := p.artifact.Document(ctx, entry)
		if err != nil && fatal(ctx, err) {
			return nil, err
		}
		var d published.Delta
		if err == nil {
			d, err = published.ParseDelta(data, p.artifact.Digest)
		}
		if err != nil {
			p.View.Note("%s: ignored (%s)", entry.Digest, plain.Line(err.Error()))
			continue
		}
		offer := delta.Offer{Old: d.Old, New: d.New, Size: d.File.Size}
		if _, twice := offers[offer]; !twice {
			offers[offer] = d.File
		}
	}
	return offers, nil
}

// identities returns those of the local bundles.
func (p *pulling) identities() []digest.Digest {
	all := make([]digest.Digest, 0, len(p.Have))
	for _, f := range p.Have {
		all = append(all, f.Digest())
	}
	return all
}

// useRoute downloads deltas and opens the bundle that they make.
func (p *pulling) useRoute(ctx context.Context, route []delta.Offer, files map[delta.Offer]ocispec.Descriptor,
	missing int64,
) (err error) {
	old := p.Have[slices.Index(p.identities(), route[0].Old)]
	size := int64(0)
	wanted := make([]fetch.Wanted, 0, len(route))
	for _, o := range route {
		size += o.Size
		wanted = append(wanted, fetch.Wanted{Kind: "delta", Ref: o.New.String(), Blobs: []ocispec.Descriptor{files[o]}})
	}
	p.View.Note("%s against %s: %s to fetch, in place of %s of blobs", plain.Count(len(route), "delta"),
		plain.Line(old.Name), plain.Size(size), plain.Size(missing))
	if err := p.fetchDeltas(ctx, wanted); err != nil {
		return err
	}
	p.fetched += size
	dir := filepath.Dir(p.output)
	sources := make([]delta.Source, 0, len(route))
	for _, w := range wanted {
		spool, err := p.spooled(ctx, dir, w.Blobs[0])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, spool.Close()) }()
		sources = append(sources, delta.Source{
			ReaderAt: spool, Name: "delta " + w.Blobs[0].Digest.String(),
			Size: w.Blobs[0].Size,
		})
	}
	if err := p.checkHeads(sources, route); err != nil {
		return err
	}
	set, stop := p.View.Meter("rebuild")
	defer stop()
	o := delta.Options{Old: &old, Scratch: dir, Progress: func(_ string, done, total int64) { set(done, total) }}
	r, err := delta.OpenSources(ctx, o, sources...)
	if err != nil {
		return err
	}
	p.made = &bundle.From{Name: "the bundle of the delta", Reader: r}
	for _, w := range wanted {
		p.deltas = append(p.deltas, w.Blobs[0].Digest)
	}
	return nil
}

// fetchDeltas downloads the files into the cache. An interrupted download continues there.
func (p *pulling) fetchDeltas(ctx context.Context, wanted []fetch.Wanted) error {
	set, stop := p.View.Meter("fetch")
	p.meter = set
	defer func() { stop(); p.meter = nil }()
	return p.artifact.Fetch(ctx, wanted)
}

// spooled copies a delta from the cache to a file that can be read at any place.
func (p *pulling) spooled(ctx context.Context, dir string, d ocispec.Descriptor) (_ bundle.Spool, err error) {
	rc, err := p.cache.Open(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	spool, err := delta.NewSpool(dir)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(spool, rc); err != nil {
		return nil, errors.Join(err, spool.Close())
	}
	return spool, nil
}

// checkHeads compares the deltas with what their manifests say.
func (p *pulling) checkHeads(sources []delta.Source, route []delta.Offer) error {
	for i, s := range sources {
		head, err := delta.ParseHead(s, s.Size)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if head.Old != route[i].Old || head.New != route[i].New {
			return fmt.Errorf("%s makes bundle %s of %s; its manifest says %s of %s", s.Name, head.New, head.Old,
				route[i].New, route[i].Old)
		}
	}
	return nil
}

// closeMade frees the temporary space of the bundle that deltas made.
func (p *pulling) closeMade() error {
	if p.made == nil {
		return nil
	}
	return p.made.Close()
}

// sources returns the local bundles, and the one that deltas made.
func (p *pulling) sources() []bundle.From {
	all := slices.Clone(p.Have)
	if p.made != nil {
		all = append([]bundle.From{*p.made}, all...)
	}
	return all
}
