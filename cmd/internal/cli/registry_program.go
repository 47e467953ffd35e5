//go:build linux && (amd64 || arm64)

package cli

import (
	"context"
	"log/slog"

	"github.com/kkbundle/kkbundle/cmd/internal/helper"
	"github.com/kkbundle/kkbundle/registry/worker"
)

// openRegistry opens a registry in a process of kkbundle-registry.
func openRegistry(ctx context.Context, o registryServeOptions, log *slog.Logger) (writableRegistry, error) {
	program, err := helper.Registry()
	if err != nil {
		return nil, err
	}
	return worker.Open(ctx, program, worker.Options{
		Dir: o.dir, Users: o.users, Pullers: o.pullers, Delete: o.delete,
		ReadOnly: o.readOnly,
	}, log)
}

func collectGarbage(ctx context.Context, o collectOptions, log *slog.Logger) (collected, error) {
	program, err := helper.Registry()
	if err != nil {
		return collected{}, err
	}
	c, err := worker.Collect(ctx, program, worker.CollectOptions{Dir: o.dir, DryRun: o.dryRun, Untagged: o.untagged},
		log)
	return collected(c), err
}
