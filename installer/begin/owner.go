package begin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// An OwnedError is a host that belongs to another machine of Cluster API, or has an installation without the mark of
// the wanted one.
type OwnedError struct {
	Host string
	// Has is "" for an installation without a mark, and Want "" for a run of a person.
	Has, Want task.Machine
}

// Error names the host, its owner and the wanted one.
func (e *OwnedError) Error() string {
	switch {
	case e.Has == "":
		return fmt.Sprintf("%s has an installation of kkbundle without the mark of machine %s", e.Host, e.Want)
	case e.Want == "":
		return fmt.Sprintf("%s belongs to machine %s of Cluster API", e.Host, e.Has)
	}
	return fmt.Sprintf("%s belongs to machine %s of Cluster API, and not to %s", e.Host, e.Has, e.Want)
}

// Hint returns the remedy.
func (e *OwnedError) Hint() string {
	switch {
	case e.Has == "":
		return "nothing was touched; name another host, or, if that installation is no longer needed, remove it with kkbundle reset --limit " + e.Host
	case e.Want == "": // the host may serve: a deleted Machine would wipe it
		return "nothing was touched; its management cluster works on it: change its objects there. If it was handed over and is still paused, kkbundle handover --undo gives it back"
	}
	return "nothing was touched; name another host, or delete that Machine in its management cluster"
}

// OwnerOf returns the owner that a host has a mark of, "" without one.
func OwnerOf(ctx context.Context, t *task.Host) (task.Machine, error) {
	data, err := t.Read(ctx, marks.Owner)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	owner, err := task.ParseMachine(strings.TrimSuffix(string(data), "\n"))
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w; if no management cluster has the host, remove the file", t.Name, marks.Owner,
			err)
	}
	return owner, nil
}

// RefuseOwned returns an OwnedError if the host belongs to another machine than the run's. same reports whether it is
// the run's.
func RefuseOwned(ctx context.Context, t *task.Host) (same bool, err error) {
	want := t.Site.Owner
	switch has, err := OwnerOf(ctx, t); {
	case err != nil:
		return false, err
	case has != "" && has != want:
		return false, &OwnedError{Host: t.Name, Has: has, Want: want}
	default:
		return has != "", nil
	}
}

// RefuseHandedOver returns an OwnedError if a node that the run reaches belongs to another machine than the run's. A
// handover that was killed has marked only a part of the nodes. Runs that change the cluster ask it first.
func RefuseHandedOver(ctx context.Context, r *engine.Run) error {
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		if t.Err != nil {
			return nil // told as unreachable
		}
		_, err := RefuseOwned(ctx, t)
		return err
	})
}

// RefuseUnmarked returns an OwnedError or a ForeignError if a host without a mark has an installation, of kkbundle or
// of others.
func RefuseUnmarked(ctx context.Context, t *task.Host) error {
	// Each of an installation's paths, as hosts without a node have no stamps.
	there, err := t.AnyExists(ctx, task.StampDir, task.ConfigDir, task.ProgramDir, task.EarlierProgramDir,
		task.BeforeDir, task.ProvisionDir, marks.Hooks)
	if err != nil {
		return err
	}
	if there {
		return &OwnedError{Host: t.Name, Want: t.Site.Owner}
	}
	return RefuseForeign(ctx, t)
}

// MarkOwner marks the host as a machine's. It comes before a run's first change, so that a killed run is known by it.
func MarkOwner(ctx context.Context, t *task.Host, owner task.Machine) error {
	return t.Write(ctx, task.File{Path: marks.Owner, Mode: 0o600, Data: []byte(owner + "\n")})
}
