package marks

import (
	"context"
	"path"

	"github.com/kkbundle/kkbundle/installer/task"
)

// AdoptionDir keeps the files of another tool that an upgrade replaces, in a directory that is named after the
// cluster's release.
const AdoptionDir = "/usr/local/lib/kkbundle/before-adoption"

// AdoptionOf returns the copies of an adoption at a release.
func AdoptionOf(release string) Copies { return Copies{Dir: path.Join(AdoptionDir, release)} }

// FindAdoption returns the complete copies of a node's adoption.
func FindAdoption(ctx context.Context, t *task.Host) (Copies, bool, error) {
	return findCopies(ctx, t, AdoptionDir)
}

// HasOthersPrograms reports whether a node was adopted and no upgrade has moved it since: its programs and settings are
// another tool's.
func HasOthersPrograms(ctx context.Context, t *task.Host) (bool, error) {
	_, adopted, err := FindAdoption(ctx, t)
	if err != nil || !adopted {
		return false, err
	}
	moved, err := Setting("kubelet").Exists(ctx, t)
	return err == nil && !moved, err
}

// ForgetAdoption removes the copies of an adoption.
func ForgetAdoption(ctx context.Context, t *task.Host) error {
	return t.Run(ctx, "rm", "-rf", "--", AdoptionDir)
}
