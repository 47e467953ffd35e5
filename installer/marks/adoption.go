package marks

import (
	"context"
	"path"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
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
	if adopted, err := IsAdopted(ctx, t); err != nil || !adopted {
		return false, err
	}
	moved, err := Setting("kubelet").Exists(ctx, t)
	return err == nil && !moved, err
}

// IsAdopted reports whether a node has the complete copies of its adoption.
func IsAdopted(ctx context.Context, t *task.Host) (bool, error) {
	_, adopted, err := FindAdoption(ctx, t)
	return adopted, err
}

// OnControlPlane reports whether one of the control planes that the run reaches is so, such as IsAdopted. The lead
// alone does not tell: kkbundle may have added it to the cluster of another tool.
func OnControlPlane(ctx context.Context, s *task.Site,
	is func(context.Context, *task.Host) (bool, error),
) (bool, error) {
	for _, t := range s.Connected(manifest.RoleControlPlane) {
		if t.Err != nil {
			continue
		}
		if yes, err := is(ctx, t); err != nil || yes {
			return yes, err
		}
	}
	return false, nil
}

// ForgetAdoption removes the copies of an adoption.
func ForgetAdoption(ctx context.Context, t *task.Host) error {
	return t.Run(ctx, "rm", "-rf", "--", AdoptionDir)
}
