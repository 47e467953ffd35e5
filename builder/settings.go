package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/installer/settingcheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// checkSettings asks the programs of every release of the project whether they take its settings.
func (b *builder) checkSettings(ctx context.Context) error {
	return b.askPrograms(ctx, lockContents{b.lock, b.cache}, func(unasked error) { b.note("%v", unasked) })
}

// askPrograms asks the programs of every release of the project, and calls unasked for each that cannot be asked. The
// error is that of a damaged cache entry, or an *InputError for each setting that a program refuses.
func (p *Project) askPrograms(ctx context.Context, from settingcheck.Contents, unasked func(error)) error {
	clusters, err := p.releases()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range clusters {
		answer := settingcheck.Ask(ctx, c, from)
		for _, err := range answer.Unasked {
			if ctx.Err() != nil || len(cache.EntryErrors(err)) > 0 {
				return errors.Join(err, context.Cause(ctx))
			}
			unasked(err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, err := range answer.Refused {
			errs = append(errs, &InputError{err})
		}
	}
	return errors.Join(errs...)
}

// AskPrograms asks Kubernetes' programs whether they take the settings of the project's clusters: the programs that
// the lock has in the cache of a directory. It downloads nothing. unasked is the reason why some were not asked, ""
// if all were. The error is an *InputError for each setting that a program refuses.
func (p *Project) AskPrograms(ctx context.Context, dir string) (unasked string, err error) {
	clusters, err := p.releases()
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(clusters, func(c *manifest.Cluster) bool { return len(settingcheck.Programs(c)) > 0 }) {
		return "", nil
	}
	l, err := p.Lock()
	switch {
	case err != nil:
		return "", err
	case l == nil:
		return "there is no lock beside the manifest; kkbundle build asks them", nil
	case l.Covers(p.Manifest) != nil:
		return "the lock does not match the manifest; kkbundle build asks them", nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "nothing is in the cache; kkbundle build asks them", nil
	}
	contents, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // the files can be right without a cache
	}
	defer func() { err = errors.Join(err, contents.Close()) }()
	var reasons []string
	err = p.askPrograms(ctx, lockContents{l, contents}, func(err error) {
		if one, ok := errors.AsType[*settingcheck.UnaskedError](err); ok {
			reasons = append(reasons, fmt.Sprintf("%s %s: %v", one.Program, one.Version, one.Err))
		}
	})
	if damaged := cache.EntryErrors(err); len(damaged) > 0 {
		return fmt.Sprintf("the cache's copy of blob %s is damaged (%s)", damaged[0].Digest, damaged[0].Reason), nil
	}
	return strings.Join(slices.Compact(reasons), "; "), err
}

// lockContents are the items of a lock that a cache has.
type lockContents struct {
	lock *manifest.Lock
	*cache.Cache
}

// Find implements settingcheck.Contents.
func (l lockContents) Find(_ context.Context, c *manifest.Cluster, need manifest.Need,
	platform scalar.Platform,
) (digest.Digest, error) {
	ref, err := catalog.Ref(c, need, platform)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(l.lock.Items, func(p manifest.Pin) bool {
		return p.Kind == need.Kind && p.Ref == ref && (p.Platform == platform || p.Platform == "")
	})
	if i < 0 {
		return "", fmt.Errorf("the bundle has none for %s", platform)
	}
	return l.lock.Items[i].Digest, nil
}

// Open opens a blob that is in the cache.
func (l lockContents) Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	_, there, err := l.Stat(ctx, d)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, errors.New("it is not in the cache")
	}
	return l.Cache.Open(ctx, d)
}
