package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"

	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"

	"github.com/kkbundle/kkbundle/registry/dirlock"
)

// CollectOptions configure Collect.
type CollectOptions struct {
	Dir      string
	DryRun   bool // remove nothing; may run beside a writing registry, whose unfinished pushes count, too
	Untagged bool // also remove manifests that no tag and no index refers to and whose subject is not there
	Logger   *slog.Logger
}

// Collected counts the removed (or, in a dry run, removable) content.
type Collected struct {
	Manifests int   `json:"manifests"`
	Blobs     int   `json:"blobs"`
	Bytes     int64 `json:"bytes"` // of the blobs
}

// Collect removes blobs without a manifest. It reads everything first, and removes nothing if anything is unreadable.
// The error is a *dirlock.LockedError while a registry may write: a new blob would be lost before its manifest
// arrives. Memory grows with the number of blobs (a digest each).
func Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	c, err := collect(ctx, o)
	if err != nil {
		return c, fmt.Errorf("collect garbage in %s: %w", o.Dir, err)
	}
	return c, nil
}

func collect(ctx context.Context, o CollectOptions) (c Collected, err error) {
	content := filesystem.New(filesystem.DriverParameters{RootDirectory: o.Dir, MaxThreads: threads})
	switch _, err := os.Stat(path.Join(o.Dir, contentRoot, "repositories")); {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(path.Join(o.Dir, dirlock.File)); err != nil {
			return c, errors.New("no registry in this directory")
		}
		return c, nil // empty registry
	case err != nil:
		return c, err
	}
	if !o.DryRun {
		l, err := dirlock.Acquire(o.Dir)
		if err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, l.Release()) }()
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	forward(o.Logger)
	counter := &sweep{StorageDriver: content, ctx: ctx, dry: o.DryRun, log: o.Logger}
	registry, err := storage.NewRegistry(ctx, counter, storage.EnableDelete)
	if err != nil {
		return c, err
	}
	// A dry run is the same run over a driver that removes nothing.
	err = storage.MarkAndSweep(ctx, counter, keep(registry, links{content}),
		storage.GCOpts{RemoveUntagged: o.Untagged, Quiet: true})
	return counter.Collected, err
}

const (
	threads     = 100 // concurrent operations of the driver: distribution's default
	contentRoot = "docker/registry/v2"
)

// A sweep counts deletions. It is used by one goroutine.
type sweep struct {
	driver.StorageDriver
	Collected
	ctx context.Context //nolint:containedctx // MarkAndSweep does not look at its own between two deletions
	dry bool
	log *slog.Logger
}

// Delete implements driver.StorageDriver.
func (s *sweep) Delete(ctx context.Context, name string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(name, "/"+contentRoot+"/blobs/"):
		info, err := s.Stat(ctx, path.Join(name, "data"))
		if err != nil && !errors.As(err, new(driver.PathNotFoundError)) {
			return err
		}
		if err == nil {
			s.Bytes += info.Size()
		}
		s.Blobs++
	case strings.Contains(name, "/_manifests/revisions/"):
		s.Manifests++
	}
	s.log.Debug("remove", "path", name, "dry-run", s.dry)
	if s.dry {
		return nil
	}
	err := s.StorageDriver.Delete(ctx, name)
	if errors.As(err, new(driver.PathNotFoundError)) {
		return nil // two digests of one content: it was removed by the other
	}
	return err
}
