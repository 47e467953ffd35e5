package adopt

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const phaseUndo = "undo"

// Undo gives an adopted cluster back on which kkbundle has replaced nothing: the record and the copies of each node
// are removed. A node that kkbundle has installed something on, or has added, is a *NotUndoneError, and no node is
// changed. A stopped one is continued by the same call.
func Undo(ctx context.Context, o engine.Options) (engine.Report, error) {
	r, err := begin.New(o, engine.Adopting())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		return r.Phases(ctx, []task.Phase{{Name: phaseUndo, Tasks: []task.Task{mayGoBack(), forgetTask()}}})
	})
}

// A NotUndoneError is a node that does not go back.
type NotUndoneError struct{ Host, Reason, Remedy string }

// Error names the node and the reason.
func (e *NotUndoneError) Error() string {
	return fmt.Sprintf("the adoption is not undone, and nothing was changed: %s %s", e.Host, e.Reason)
}

// Hint returns the remedy.
func (e *NotUndoneError) Hint() string { return e.Remedy }

// mayGoBack checks all nodes before the first one is changed: an adoption leaves no stamp but the record.
func mayGoBack() task.Task {
	return task.Task{
		Name: "way-back", Roles: []manifest.Role{manifest.RoleCluster}, AllOrNone: true,
		Do: func(ctx context.Context, t *task.Host) error {
			if nothing, err := begin.NotInstalled(ctx, t); err != nil || nothing {
				return err // a stopped run has given the node back
			}
			out, err := t.Output(ctx, "find", task.StampDir, "-mindepth", "1", "!", "-path", string(marks.Member),
				"-printf", `%f\n`)
			if err != nil {
				return err
			}
			stamps := strings.Fields(string(out))
			if len(stamps) == 0 {
				return nil
			}
			_, adopted, err := marks.FindAdoption(ctx, t)
			if err != nil {
				return err
			}
			if !adopted {
				return &NotUndoneError{
					t.Name, "was installed by kkbundle",
					"delete the node first: kkbundle nodes delete " + t.Name,
				}
			}
			return &NotUndoneError{
				t.Name, fmt.Sprintf("has programs or settings of kkbundle since (%s)", strings.Join(stamps, ", ")),
				"the cluster stays kkbundle's; the files that were replaced are in " + marks.AdoptionDir,
			}
		},
	}
}

// forgetTask removes what an adoption has left, and the lock, which a run makes on every host.
func forgetTask() task.Task {
	return task.Task{
		Name: "forget", Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, task.StateDir, path.Dir(marks.AdoptionDir))
			return !there, err
		},
		Do: forgetHost,
	}
}

// forgetHost removes the record first: copies without it are none of an adoption.
func forgetHost(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, "rm", "-rf", "--", task.StampDir); err != nil {
		return err
	}
	if err := marks.ForgetAdoption(ctx, t); err != nil {
		return err
	}
	if _, err := t.Test(ctx, "rmdir", path.Dir(marks.AdoptionDir)); err != nil {
		return err
	}
	return begin.Forget(ctx, t)
}
