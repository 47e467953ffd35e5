package begin

import (
	"context"
	_ "embed"
	"errors"
	"strconv"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node/transfer"
	"github.com/kkbundle/kkbundle/installer/task"
)

// ForgetHelpers ends a run that only looks: it removes the helpers, also after a cancel, and joins the errors.
func ForgetHelpers(ctx context.Context, r *engine.Run, err error) error {
	stopped := context.Cause(ctx)
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, stopped, r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
		if err := ForgetHelper(ctx, t); t.Err == nil && !task.IsUnresponsive(err) {
			return err
		}
		return nil // the report has the host's error
	}))
}

// ForgetHelper removes the helper from a host that has nothing else of kkbundle and keeps no files for an installation,
// unless another run there needs it.
func ForgetHelper(ctx context.Context, t *task.Host) error {
	ctx, cancel := task.WithTimeout(ctx, task.FactsTimeout)
	defer cancel()
	nothing, err := NotInstalled(ctx, t)
	if err != nil || !nothing {
		return err
	}
	if there, err := t.Test(ctx, "test", "-d", task.StateDir); err != nil || !there {
		return err
	}
	if staged, err := isStaged(ctx, t); err != nil || staged {
		return err
	}
	err = Forget(ctx, t, "flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(engine.LockConflict), marks.Lock)
	if failed, ok := errors.AsType[*host.ExitError](err); ok && failed.Code == engine.LockConflict {
		return nil
	}
	return err
}

// isStaged reports whether a host keeps files for an installation.
func isStaged(ctx context.Context, t *task.Host) (bool, error) {
	there, err := t.Test(ctx, "test", "-d", transfer.Dir)
	if err != nil || !there {
		return false, err
	}
	found, err := host.Output(ctx, t.Conn, "find", transfer.Dir, "-type", "f", "-size", "+0", "-print", "-quit")
	return len(found) > 0, err
}

// NotInstalled reports whether no task has left a stamp.
func NotInstalled(ctx context.Context, t *task.Host) (bool, error) {
	there, err := t.Test(ctx, "test", "-d", task.StampDir)
	return !there, err
}

//go:embed scripts/forget.sh
var forgetScript string

// Forget removes the helper and the lock, kkbundle's last files on a host. under is a command that runs another.
func Forget(ctx context.Context, t *task.Host, under ...string) error {
	ctx = task.DescribedAs(ctx, "remove the helper and the lock from "+task.StateDir)
	return t.Run(ctx, append(under, host.Script("forget.sh", forgetScript, task.StateDir)...)...)
}
