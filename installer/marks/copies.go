package marks

import (
	"context"
	_ "embed"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

//go:embed scripts/keep-files.sh
var keepFilesScript string

//go:embed scripts/put-back.sh
var putBackScript string

//go:embed scripts/same-files.sh
var sameFilesScript string

// Keep copies those of the host's files and directories that exist, and removes all other copies beside the
// directory. Copies of replaced become links where that is possible, because these are replaced and never changed.
// Complete ends the work.
func (c Copies) Keep(ctx context.Context, t *task.Host, replaced, changed []string) error {
	args := append(host.Script("keep-files.sh", keepFilesScript, c.Dir, "/"), relative(replaced)...)
	return t.Run(ctx, append(append(args, "--"), relative(changed)...)...)
}

// PutBack replaces files of the host by their copies, each at once. A file without a copy stays.
func (c Copies) PutBack(ctx context.Context, t *task.Host, files ...string) error {
	return t.Run(ctx, append(host.Script("put-back.sh", putBackScript, c.Dir, "/"), relative(files)...)...)
}

// AreSame reports whether files of the host equal their copies. A file without a copy counts as the same.
func (c Copies) AreSame(ctx context.Context, t *task.Host, files ...string) (bool, error) {
	return t.Test(ctx, append(host.Script("same-files.sh", sameFilesScript, c.Dir, "/"), relative(files)...)...)
}

// relative returns paths as the scripts take them, relative to the root directory.
func relative(paths []string) []string {
	list := slices.Clone(paths)
	for i, p := range list {
		list[i] = strings.TrimPrefix(p, "/")
	}
	return list
}
