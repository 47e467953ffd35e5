package cli

import (
	"context"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle/diff"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
)

// openListing reads a bundle, local or published, or a lock. Close it afterwards.
func (g *globals) openListing(ctx context.Context, path string, login loginFlags) (*diff.Listing, error) {
	if usage.IsAddress(path) {
		return g.remoteListing(ctx, path, login)
	}
	if usage.IsYAML(path) {
		data, err := build.ReadFile(path)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(path, data)
		if err != nil {
			return nil, err
		}
		return diff.OfLock(l), nil
	}
	r, err := g.openBundle(path)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		_ = r.Close() // report the first error
		return nil, err
	}
	return diff.OfBundle(&r.Catalog, contents, r, r.Close), nil
}

func (g *globals) remoteListing(ctx context.Context, address string, login loginFlags) (*diff.Listing, error) {
	r, end, err := g.openRemote(ctx, address, login)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		end()
		return nil, err
	}
	return diff.OfBundle(&r.Catalog, contents, r, func() error { end(); return nil }), nil
}
