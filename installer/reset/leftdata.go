package reset

import (
	"context"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

func noDataLeft(ctx context.Context, t *task.Host) (bool, error) {
	if !t.Site.WithData {
		return true, nil
	}
	there, err := t.Test(ctx, "test", "-e", task.DataListFile)
	return !there, err
}

// removeDataLeft removes the data of an earlier reset. It removes only paths that the cluster's tasks can create: the
// file on the host alone does not decide.
func removeDataLeft(ctx context.Context, t *task.Host) error {
	noted, err := t.RecordedData(ctx)
	if err != nil {
		return err
	}
	known := dataOf(t.Site.Cluster)
	for _, p := range noted {
		if !slices.Contains(known, p) {
			continue
		}
		if err := t.Remove(ctx, p); err != nil {
			return err
		}
	}
	if _, err := t.Test(ctx, "rmdir", path.Dir(addon.LocalPath)); err != nil {
		return err
	}
	return t.Run(ctx, "rm", "-f", task.DataListFile)
}

// dataOf returns all paths of data that a cluster's tasks may create on a host.
func dataOf(c *manifest.Cluster) []string {
	var paths []string
	for _, phase := range plan.Plan(c) {
		for _, task := range phase.Tasks {
			paths = append(paths, task.Leaves.Data...)
		}
	}
	if c.Storage.NFS {
		paths = append(paths, c.Storage.NFSPath) // only on the host that exports it; the task finds that host itself
	}
	return paths
}
