package installer

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// dataLeft lists what a reset without WithData has left on a host. When the stamps are gone, nothing else says that it is an
// installation's, and a later reset has to know that it may take it away.
const dataLeft = stateDir + "/data-left"

// leaveData writes down which of the paths are there.
func (t *Target) leaveData(ctx context.Context, paths ...string) error {
	noted, err := t.dataLeft(ctx)
	if err != nil {
		return err
	}
	list := slices.Clone(noted)
	for _, p := range paths {
		there, err := t.test(ctx, "test", "-e", p)
		if err != nil {
			return err
		}
		if there && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if len(list) == len(noted) {
		return nil
	}
	return t.write(ctx, textFile{dataLeft, 0o600, []byte(strings.Join(list, "\n") + "\n")})
}

// dataLeft returns the paths that a reset has written down.
func (t *Target) dataLeft(ctx context.Context) ([]string, error) {
	text, err := t.read(ctx, dataLeft)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }), err
}

func noDataLeft(ctx context.Context, t *Target) (bool, error) {
	if !t.run.WithData {
		return true, nil
	}
	there, err := t.test(ctx, "test", "-e", dataLeft)
	return !there, err
}

// removeDataLeft removes what an earlier reset has left, as far as the cluster's tasks make such a thing: a host's file alone does
// not decide what is removed.
func removeDataLeft(ctx context.Context, t *Target) error {
	noted, err := t.dataLeft(ctx)
	if err != nil {
		return err
	}
	known := dataOf(t.run.cluster)
	for _, p := range noted {
		if !slices.Contains(known, p) {
			continue
		}
		if err := t.remove(ctx, p); err != nil {
			return err
		}
	}
	if _, err := t.test(ctx, "rmdir", path.Dir(localPath)); err != nil {
		return err
	}
	return t.command(ctx, "rm", "-f", dataLeft)
}

// dataOf are all paths of data that a cluster's tasks may have on some host.
func dataOf(c *manifest.Cluster) []string {
	var paths []string
	for _, phase := range Plan(c) {
		for _, task := range phase.Tasks {
			paths = append(paths, task.Leaves.Data...)
		}
	}
	if c.Storage.NFS {
		paths = append(paths, c.Storage.NFSPath) // only on the host that exports it, which the task finds out by itself
	}
	return paths
}
