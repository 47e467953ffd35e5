package reset

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

// refuseOthers refuses a run for an owner on a host with another mark, or with an installation without one. A host with
// neither is clean: a run may have been killed before it left the mark, or reset after it removed it.
func refuseOthers(ctx context.Context, t *task.Host) error {
	if t.Site.Owner == "" {
		return nil
	}
	marked, err := begin.RefuseOwned(ctx, t)
	if err != nil || marked {
		return err
	}
	return begin.RefuseUnmarked(ctx, t)
}

// noOwner reports whether the host has no mark of an owner. The reason tells a person whose host it was.
func noOwner(ctx context.Context, t *task.Host) (bool, error) {
	there, err := t.Test(ctx, "test", "-e", marks.Owner)
	if err != nil || !there {
		return !there, err
	}
	if owner, err := begin.OwnerOf(ctx, t); err == nil {
		task.Because(ctx, "it was machine %s of Cluster API", owner)
	}
	return false, nil
}

func removeOwner(ctx context.Context, t *task.Host) error {
	return t.Run(ctx, "rm", "-f", "--", marks.Owner)
}
