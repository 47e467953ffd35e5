package marks

import (
	"context"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	// AdoptionDir keeps the files of another tool that an install or upgrade replaces, in a directory that is named
	// after the cluster's release.
	AdoptionDir = "/usr/local/lib/kkbundle/before-adoption"
	// adoptedRecord is the record that the adoption gave the node.
	adoptedRecord = "record"
)

// AdoptionOf returns the copies of an adoption at a release.
func AdoptionOf(release string) Copies { return Copies{Dir: path.Join(AdoptionDir, release)} }

// FindAdoption returns the complete copies of a node's adoption.
func FindAdoption(ctx context.Context, t *task.Host) (Copies, bool, error) {
	return findCopies(ctx, t, AdoptionDir)
}

// Record returns the path of the record that the adoption wrote.
func (c Copies) Record() string { return c.Path(adoptedRecord) }

// Files returns the paths of the files that have a copy.
func (c Copies) Files(ctx context.Context, t *task.Host) ([]string, error) {
	out, err := t.Output(task.WithoutOutput(ctx), "find", c.Dir, "-mindepth", "2", "(", "-type", "f", "-o", "-type", "l",
		")", "-printf", `/%P\n`)
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), err
}
