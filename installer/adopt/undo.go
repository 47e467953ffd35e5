package adopt

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const phaseUndo = "undo"

// Undo gives an adopted cluster back: on one node after the other it puts the files back that Take has kept, removes
// what kkbundle has added since, and restores the host's settings. Objects in the cluster stay. Every node must have
// the release and the endpoint of its adoption, else the error is a *NotUndoneError and nothing is changed. A stopped
// one is continued by the same call.
func Undo(ctx context.Context, o engine.Options) (engine.Report, error) {
	r, err := begin.New(o, engine.Adopting())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		return r.Phases(ctx, []task.Phase{{Name: phaseUndo, Tasks: []task.Task{
			mayGoBack(), undoTask(r.Cluster), forgetTask(),
		}}})
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

// mayGoBack checks all nodes before the first one is changed.
func mayGoBack() task.Task {
	return task.Task{
		Name: "way-back", Roles: []manifest.Role{manifest.RoleCluster}, AllOrNone: true,
		Do: func(ctx context.Context, t *task.Host) error {
			copies, there, err := marks.FindAdoption(ctx, t)
			if err != nil {
				return err
			}
			is, settings, joined, err := member.Recorded(ctx, t)
			switch {
			case err != nil || !there && !joined:
				return err // a stopped run has given the node back
			case !there:
				return &NotUndoneError{t.Name, "was installed by kkbundle", "delete the node first: kkbundle nodes delete " + t.Name}
			case !joined:
				return nil // a stopped run is at it
			}
			if unfinished, err := marks.IsUnfinished(ctx, t); err != nil || unfinished {
				return cannot(err, t, "is in the middle of an upgrade or a rollback", "finish it: run the same command again")
			}
			data, err := t.Read(ctx, copies.Record())
			if err != nil {
				return err
			}
			was, before := member.Split(data)
			switch {
			case is != was:
				return &NotUndoneError{
					t.Name, fmt.Sprintf("has %s since, and was adopted with %s", is, was),
					"go back first, with kkbundle upgrade --rollback",
				}
			case member.Value(settings, member.EndpointSetting) != member.Value(before, member.EndpointSetting):
				return &NotUndoneError{
					t.Name, "has another endpoint since its adoption",
					"move it back first, with kkbundle endpoint move",
				}
			}
			return nil
		},
	}
}

func cannot(err error, t *task.Host, reason, remedy string) error {
	if err != nil {
		return err
	}
	return &NotUndoneError{t.Name, reason, remedy}
}

// undoTask gives one node after the other back.
func undoTask(c *manifest.Cluster) task.Task {
	return task.Task{
		Name: "give-back", Roles: []manifest.Role{manifest.RoleCluster}, Where: task.OneByOne,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, marks.AdoptionDir, task.StampDir)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error { return giveBack(ctx, t, c) },
	}
}

func giveBack(ctx context.Context, t *task.Host, c *manifest.Cluster) error {
	copies, there, err := marks.FindAdoption(ctx, t)
	if err != nil {
		return err
	}
	if there {
		if err := putFilesBack(ctx, t, c, copies); err != nil {
			return err
		}
	}
	return forget(ctx, t)
}

// putFilesBack restores the runtime, the kubelet and the host's settings, and removes what kkbundle has added.
func putFilesBack(ctx context.Context, t *task.Host, c *manifest.Cluster, copies marks.Copies) error {
	kept, err := copies.Files(ctx, t)
	if err != nil {
		return err
	}
	for _, unit := range addedUnits(c) {
		if err := t.RemoveUnit(ctx, unit); err != nil {
			return err
		}
	}
	if _, err := t.Test(ctx, "systemctl", "stop", kubeadm.KubeletUnit); err != nil {
		return err
	}
	added := slices.DeleteFunc(addedFiles(c), func(p string) bool { return slices.Contains(kept, p) })
	if err := t.Run(ctx, append([]string{"rm", "-f", "--"}, added...)...); err != nil {
		return err
	}
	// The runtime has copies of its own, which its first replacement has made.
	if none, err := cri.IsContainerdRestored(ctx, t); err != nil {
		return err
	} else if !none {
		if err := cri.RestoreContainerd(ctx, t); err != nil {
			return err
		}
	}
	if err := copies.PutBack(ctx, t, kept...); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	// The link to the unit that was enabled may lead to kkbundle's.
	if err := t.Systemctl(ctx, "reenable", kubeadm.KubeletUnit); err != nil {
		return err
	}
	if err := machine.RestoreClock(ctx, t); err != nil {
		return err
	}
	if err := reset.RestoreHost(ctx, t); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "restart", kubeadm.KubeletUnit); err != nil {
		return t.WithUnitLog(ctx, kubeadm.KubeletUnit, err)
	}
	return isBack(ctx, t)
}

// addedFiles returns the files of programs and units that kkbundle's tasks write on nodes.
func addedFiles(c *manifest.Cluster) []string {
	list := append(replacedPrograms(c), kubeadm.KubeletUnitFiles()...)
	for _, unit := range cri.RuntimeOf(c).Units {
		list = append(list, task.UnitDir+unit)
	}
	return list
}

// isBack waits until the node is ready again.
func isBack(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error {
		nodes, err := t.Site.FirstControlPlane().Kube().Nodes(ctx)
		if err != nil {
			return err
		}
		n := kube.FindNode(nodes, t.Name)
		if n == nil || !kube.IsNodeReady(n) {
			return fmt.Errorf("node %s is not ready", t.Name)
		}
		return nil
	})
}

// forget removes kkbundle's own files, the record and the copies last: they show that there is something to undo.
func forget(ctx context.Context, t *task.Host) error {
	last := []string{task.StampDir, marks.ContainerdBefore, marks.AdoptionDir}
	for _, paths := range [][]string{
		// the copies are in the directory of earlier programs
		slices.DeleteFunc(reset.OwnFiles(), func(p string) bool { return p == task.EarlierProgramDir }),
		{marks.CopiesDir}, last,
	} {
		if err := t.Run(ctx, append([]string{"rm", "-rf", "--"}, paths...)...); err != nil {
			return err
		}
	}
	return nil
}

// forgetTask removes empty directories, and the lock, which a run makes on every host.
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

func forgetHost(ctx context.Context, t *task.Host) error {
	if nothing, err := begin.NotInstalled(ctx, t); err != nil || !nothing {
		return err
	}
	if _, err := t.Test(ctx, "rmdir", path.Dir(marks.AdoptionDir)); err != nil {
		return err
	}
	return begin.Forget(ctx, t)
}
