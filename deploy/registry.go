package deploy

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/registry"
)

// A Registry is where the nodes of a cluster pull a bundle's images from.
type Registry interface {
	// Open makes the registry ready to be pushed to. With dryRun it changes nothing.
	Open(ctx context.Context, cluster *rest.Config, dryRun bool) (Endpoint, error)
	// Close ends what Open began, such as a connection. The registry stays.
	Close() error
}

// An Endpoint is a registry that is ready.
type Endpoint struct {
	// Pull is HOST[:PORT][/PREFIX] as nodes reach it. It is part of every image reference.
	Pull string
	// PullSecret is the docker configuration (.dockerconfigjson) that nodes pull with, nil for none.
	PullSecret []byte
	// Options push to it. Their Registry is the address from here, which may differ from Pull in the host only.
	Options registry.PushOptions
}

// Given is a registry of the site.
type Given struct{ Endpoint }

// Open implements Registry.
func (g Given) Open(context.Context, *rest.Config, bool) (Endpoint, error) { return g.Endpoint, nil }

// Close implements Registry.
func (Given) Close() error { return nil }

// A RegistryError is a failure of the registry.
type RegistryError struct{ Err error }

// Error returns the reason.
func (e *RegistryError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RegistryError) Unwrap() error { return e.Err }

// seed pushes the items of groups, or only looks with look. It returns the digests of images that the registry has in a
// reduced form.
func seed(ctx context.Context, b *bundle.Reader, at Endpoint, of groups.Set,
	look bool,
) (map[string]digest.Digest, registry.PushSummary, error) {
	o := at.Options
	o.DryRun, o.Select = o.DryRun || look, of.Has
	sum, err := registry.Push(ctx, b, o)
	if err != nil {
		return nil, sum, &RegistryError{err}
	}
	digests := map[string]digest.Digest{}
	for _, it := range sum.Items {
		if it.Kind == bundle.KindImage && it.Digest != "" {
			digests[it.Ref] = it.Digest
		}
	}
	return digests, sum, nil
}

// errUnseeded means --no-push was given for a registry that lacks items.
func errUnseeded(at string, sum registry.PushSummary) error {
	for _, it := range sum.Items {
		if it.State == registry.StateMissing {
			return &RegistryError{fmt.Errorf(
				"registry %s lacks %d of the bundle's items, %s first; deploy without --no-push, or run push", at,
				sum.ItemsMissing, it.Ref)}
		}
	}
	return &RegistryError{errors.New("registry " + at +
		" lacks items of the bundle; deploy without --no-push, or run push")}
}
