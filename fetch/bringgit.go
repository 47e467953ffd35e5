package fetch

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// GitRepositories pins the Git repositories of a manifest and brings them into the Store. The error is *Errors with
// every failed repository, or the context's; the others are still returned.
func GitRepositories(ctx context.Context, b *manifest.Bundle, o Options) ([]manifest.Pin, error) {
	if len(b.Git) == 0 {
		return nil, nil
	}
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	failed := &failures{}
	entries := s.gitEntries(b)
	var mu sync.Mutex
	var pins []manifest.Pin
	for i := range entries {
		resolve := entries[i].resolve
		entries[i].resolve = func(ctx context.Context) ([]manifest.Pin, error) {
			found, err := resolve(ctx)
			for _, pin := range found {
				if err == nil {
					err = s.repositories.have(ctx, pin)
				}
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				pins = append(pins, found...)
			}
			return nil, err
		}
	}
	s.pinAll(ctx, entries, failed)
	slices.SortFunc(pins, func(a, b manifest.Pin) int { return strings.Compare(a.Ref, b.Ref) })
	return pins, failed.err(ctx, len(b.Git))
}

// have brings a pinned repository into the Store.
func (g *repositories) have(ctx context.Context, pin manifest.Pin) error {
	p, err := g.plan(ctx, pin)
	if err != nil {
		return err
	}
	for _, b := range p.blobs {
		_, ok, err := g.cache.Store.Stat(ctx, b.digest)
		if err != nil {
			return &upstream.StoreError{Cause: err}
		}
		if ok {
			continue
		}
		return b.fetch(ctx) // brings them all
	}
	return nil
}
