package marks

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

// UpgradingAnnotation is the annotation of nodes that an upgrade has cordoned: the release that they go to. Other
// cordoned nodes stay so.
const UpgradingAnnotation = "kkbundle.io/upgrading"

// InUpgrade reports whether an upgrade or a rollback has cordoned a node, and has not ended with it.
func InUpgrade(n *corev1.Node) bool {
	_, ok := n.Annotations[UpgradingAnnotation]
	return ok
}

// IsUnfinished reports whether an upgrade or a rollback has begun on a node and is not complete there.
func IsUnfinished(ctx context.Context, t *task.Host) (bool, error) {
	return Any(ctx, t, ServerUpgraded, UpgradeBegun)
}

// EndUpgrade removes the stamps of an unfinished upgrade or rollback.
func EndUpgrade(ctx context.Context, t *task.Host) error {
	return Remove(ctx, t, ServerUpgraded, UpgradeBegun)
}

// The copies of a node are in a directory of CopiesDir, which is named after the release before.
const (
	// CopiesDir keeps the files that an upgrade replaces, in a directory per old version. It is on the file system
	// of the programs, which it holds as hard links.
	CopiesDir = "/usr/local/lib/kkbundle/before-upgrade"
	// copiesComplete is the file that completes the copies of an upgrade in progress. Its name is copiesFinished
	// after it, until a rollback begins.
	copiesComplete = "complete"
	copiesFinished = "finished"
	// copiedObjects has the objects that kubeadm changes, and copiedTypes the names of the API's types, one per line.
	copiedObjects = "objects.json"
	copiedTypes   = "types"
)

//go:embed scripts/mark-kept.sh
var markKeptScript string

// Copies are the copies of a node: the directory, which is named after the release before, and whether the upgrade of
// the node is complete.
type Copies struct {
	Dir      string
	Finished bool
}

// CopiesOf returns the copies of a release, as an upgrade makes them.
func CopiesOf(release string) Copies { return Copies{Dir: path.Join(CopiesDir, release)} }

// FindCopies returns the complete copies of a node. There are those of one release at most.
func FindCopies(ctx context.Context, t *task.Host) (Copies, bool, error) {
	return findCopies(ctx, t, CopiesDir)
}

func findCopies(ctx context.Context, t *task.Host, dir string) (Copies, bool, error) {
	there, err := t.Test(ctx, "test", "-d", dir)
	if err != nil || !there {
		return Copies{}, false, err
	}
	out, err := t.Output(ctx, "find", dir, "-mindepth", "2", "-maxdepth", "2",
		"(", "-name", copiesComplete, "-o", "-name", copiesFinished, ")", "-printf", `%P\n`)
	mark, _, _ := strings.Cut(string(out), "\n")
	if err != nil || mark == "" {
		return Copies{}, false, err
	}
	return Copies{path.Join(dir, path.Dir(mark)), path.Base(mark) == copiesFinished}, true, nil
}

// Release returns the release that the copies lead back to.
func (c Copies) Release() string { return path.Base(c.Dir) }

// Path returns the path of the copy of a file.
func (c Copies) Path(file string) string { return path.Join(c.Dir, file) }

// Objects returns the path of the objects that kubeadm changes, and Types that of the names of the API's types, one
// per line.
func (c Copies) Objects() string { return c.Path(copiedObjects) }

// Types returns the path of the names of the API's types.
func (c Copies) Types() string { return c.Path(copiedTypes) }

// Complete marks copies as complete.
func (c Copies) Complete(ctx context.Context, t *task.Host) error {
	return t.Write(ctx, task.File{Path: c.Path(copiesComplete), Mode: 0o600})
}

// AreComplete reports whether the copies are those of an upgrade in progress, and complete.
func (c Copies) AreComplete(ctx context.Context, t *task.Host) (bool, error) {
	return t.Test(ctx, "test", "-e", c.Path(copiesComplete))
}

// FinishCopies marks a node's copies, if it has any, as those of a complete upgrade: the next upgrade keeps anew.
func FinishCopies(ctx context.Context, t *task.Host) error {
	return markCopies(ctx, t, copiesComplete, copiesFinished)
}

// ReopenCopies marks a node's copies, if it has any, as those of an upgrade in progress: a continued one does not
// replace them.
func ReopenCopies(ctx context.Context, t *task.Host) error {
	return markCopies(ctx, t, copiesFinished, copiesComplete)
}

func markCopies(ctx context.Context, t *task.Host, from, to string) error {
	return t.Run(ctx, host.Script("mark-kept.sh", markKeptScript, CopiesDir, from, to)...)
}

// CopiesSize returns the size of all copies.
func CopiesSize(ctx context.Context, t *task.Host) (int64, error) {
	size, err := t.Output(ctx, "du", "--summarize", "--block-size=1", CopiesDir)
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(string(size), "\t")
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: unexpected output of du: %q", t.Name, size)
	}
	return bytes, nil
}

// ForgetCopies removes all copies.
func ForgetCopies(ctx context.Context, t *task.Host) error { return t.Run(ctx, "rm", "-rf", CopiesDir) }
