package cli

import (
	"context"
	"errors"
	"io"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/registry"
)

// A pushSource is a bundle to push: a file, parts, or a pipe.
type pushSource struct {
	io.Closer
	items []bundle.Item
	push  func(ctx context.Context, o registry.PushOptions) (registry.PushSummary, error)
}

func (g *globals) openPushSource(ctx context.Context, path string, jobs int) (pushSource, error) {
	pipe, err := g.openPipe(path)
	if err != nil {
		return pushSource{}, err
	}
	if pipe == nil {
		r, err := g.openBundle(path)
		if err != nil {
			return pushSource{}, err
		}
		return pushSource{r, r.Index().Items, func(ctx context.Context, o registry.PushOptions) (registry.PushSummary, error) {
			return registry.Push(ctx, r, o)
		}}, nil
	}
	s, err := g.openStream(ctx, path, pipe, jobs)
	if err != nil {
		return pushSource{}, errors.Join(err, pipe.Close())
	}
	return pushSource{pipe, s.Index().Items, func(ctx context.Context, o registry.PushOptions) (registry.PushSummary, error) {
		return registry.PushStream(ctx, s, o)
	}}, nil
}

// checkPipe returns an error if bundle and password both come from standard input.
func (o *pushOptions) checkPipe(path string) error {
	if path == standardStream && o.passwordStdin {
		return usage.Errorf("the password and the bundle cannot both come on standard input: run docker login before, or name the bundle's file or pipe")
	}
	return nil
}
