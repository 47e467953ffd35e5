//go:build !linux || !(amd64 || arm64)

package cli

import (
	"context"
	"log/slog"

	"github.com/kkbundle/kkbundle/registry/embedded"
)

// openRegistry opens a registry in this process: kkbundle-registry is a program for Linux.
func openRegistry(ctx context.Context, o registryServeOptions, log *slog.Logger) (writableRegistry, error) {
	return embedded.Open(ctx, embedded.Options{
		Dir: o.dir, Users: o.users, Pullers: o.pullers, Delete: o.delete,
		ReadOnly: o.readOnly, Logger: log,
	})
}

func collectGarbage(ctx context.Context, o collectOptions, log *slog.Logger) (collected, error) {
	c, err := embedded.Collect(ctx, embedded.CollectOptions{
		Dir: o.dir, DryRun: o.dryRun, Untagged: o.untagged,
		Logger: log,
	})
	return collected(c), err
}
