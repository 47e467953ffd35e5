package upgrade

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// keepTask copies the files that an upgrade replaces on a node: the programs, and on a control plane all of
// /etc/kubernetes and the cluster's objects. Copies of a node stay when the upgrade is continued, those of control
// planes once kubeadm has begun to change one: before, they may be of a run that stopped long ago.
func keepTask(c *manifest.Cluster) task.Task {
	copies := func(ctx context.Context, t *task.Host) (marks.Copies, error) {
		id, _, _, err := member.Recorded(ctx, t)
		return marks.CopiesOf(id.Version), err
	}
	return task.Task{
		Name: "keep",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if current, err := isCurrent(ctx, t); err != nil || current {
				return current, err
			}
			to, err := copies(ctx, t)
			if err != nil {
				return false, err
			}
			if t.Is(manifest.RoleControlPlane) {
				if begun, err := hasBegun(ctx, t.Site); err != nil || !begun {
					return false, err
				}
			}
			return to.AreComplete(ctx, t)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			to, err := copies(ctx, t)
			if err != nil {
				return err
			}
			if err := tidyTask().Do(ctx, t); err != nil { // copies of kubeadm's copies help nobody
				return err
			}
			var programs []string
			for _, f := range filesOf(nodePrograms(c)) {
				programs = append(programs, f.Path)
			}
			settings := append(kubeadm.NodeSettings(c), "/etc/kubernetes", member.Path)
			if err := to.Keep(ctx, t, programs, settings); err != nil {
				return err
			}
			if t.Is(manifest.RoleControlPlane) {
				if err := keepObjects(ctx, t, to); err != nil {
					return err
				}
			}
			return to.Complete(ctx, t)
		},
	}
}

// hasBegun reports whether the upgrade or a rollback of it has begun to change a control plane, and with it the
// cluster's objects.
func hasBegun(ctx context.Context, s *task.Site) (bool, error) {
	for _, t := range s.WithRole(manifest.RoleControlPlane) {
		if begun, err := marks.IsUnfinished(ctx, t); err != nil || begun {
			return begun, err
		}
		if done, err := member.Records(ctx, t, member.Path); err != nil || done {
			return done, err
		}
	}
	return false, nil
}

// changedObjects are the objects in kube-system that kubeadm upgrade changes and a rollback puts back.
func changedObjects() []string {
	return []string{
		"configmap/kubeadm-config", "configmap/kubelet-config", "configmap/kube-proxy", "configmap/coredns",
		"daemonset.apps/kube-proxy", "deployment.apps/coredns",
	}
}

// keepObjects keeps the objects that an upgrade changes, and the names of the API's types.
func keepObjects(ctx context.Context, t *task.Host, to marks.Copies) error {
	var items []map[string]any
	for _, name := range changedObjects() {
		var o map[string]any
		if err := t.Kube().Get(ctx, &o, name, "--namespace="+kube.SystemNamespace, "--ignore-not-found"); err != nil {
			return fmt.Errorf("keep %s: %w", name, err)
		}
		if len(o) > 0 {
			items = append(items, withoutState(o))
		}
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return fmt.Errorf("keep objects of %s: %w", kube.SystemNamespace, err)
	}
	types, err := apiTypes(ctx, t)
	if err != nil {
		return err
	}
	return t.Write(ctx,
		task.File{Path: to.Objects(), Mode: 0o600, Data: data},
		task.File{Path: to.Types(), Mode: 0o600, Data: []byte(strings.Join(types, "\n") + "\n")})
}

// withoutState removes the parts of an object that belong to the API server. Without a resource version, a
// replacement is unconditional.
func withoutState(o map[string]any) map[string]any {
	delete(o, "status")
	if meta, ok := o["metadata"].(map[string]any); ok {
		for _, name := range []string{
			"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields",
			"selfLink",
		} {
			delete(meta, name)
		}
	}
	return o
}

// apiTypes returns the names of the types whose objects the API server lists, such as deployments.apps.
func apiTypes(ctx context.Context, t *task.Host) ([]string, error) {
	out, err := t.Kubectl(task.WithoutOutput(ctx), "api-resources", "--verbs=list", "--output=name", "--cached=false")
	list := strings.Fields(string(out))
	if err != nil && len(list) == 0 { // types of another API server that does not answer are left out
		return nil, fmt.Errorf("types of the API: %w", err)
	}
	return list, nil
}

// beginTask makes a node one that has not completed its upgrade, before anything is put back: if the rollback stops,
// an upgrade does all its work on the node again and keeps the copies.
func (w *nodeWalk) beginTask(phase string) task.Task {
	return task.Task{Name: "begin", Done: task.Never, Do: func(ctx context.Context, t *task.Host) error {
		// a kubeadm that lost its session would write manifests
		if _, err := kubeadm.Stop(ctx, t, marks.UpgradeBegun); err != nil {
			return err
		}
		if err := t.Write(ctx, marks.UpgradeBegun.File(nil)); err != nil {
			return err
		}
		if err := marks.ReopenCopies(ctx, t); err != nil {
			return err
		}
		if err := w.keepQuota(ctx, phase, t); err != nil {
			return err
		}
		if err := t.Write(ctx, member.File(t.Site)); err != nil {
			return err
		}
		return marks.Remove(ctx, t, marks.ServerUpgraded)
	}}
}

// keepQuota keeps the quota of etcd where it has grown since the upgrade: the database may have outgrown the former
// one, and etcd would take no changes.
func (w *nodeWalk) keepQuota(ctx context.Context, phase string, t *task.Host) error {
	kept, ok := w.kept[t.Name]
	if !ok || !t.Is(manifest.RoleControlPlane) || w.Cluster.Etcd.Type != manifest.EtcdInternal {
		return nil
	}
	quota, err := kubeadm.KeepQuota(ctx, t, kept.Path(kube.ManifestsDir+"/etcd.yaml"))
	if err == nil && quota > 0 && w.Cluster.Etcd.Quota == 0 {
		w.Tell(task.Event{
			Phase: phase, Task: "begin", Host: t.Name, State: task.Warned,
			Message: fmt.Sprintf("etcd keeps its quota of %s, and the cluster file has none: write etcd.quota there for control planes that join later", plain.Size(quota)),
		})
	}
	return err
}

// objectsTask puts the objects back that kubeadm has changed. kube-proxy may not be newer than an API server.
func (w *nodeWalk) objectsTask() task.Task {
	return task.Task{Name: "objects", Done: task.Never, Do: func(ctx context.Context, t *task.Host) error {
		for _, from := range w.controlPlanes() {
			kept, ok := w.kept[from.Name]
			if !ok {
				continue
			}
			data, err := from.Read(ctx, kept.Objects())
			if err != nil {
				return fmt.Errorf("objects of the cluster before its upgrade: %w", err)
			}
			_, err = t.Kube().Kubectl(ctx, kube.Command{
				Args: []string{"replace", "--filename=-"}, Stdin: data,
				Quiet: true,
			})
			return err
		}
		return nil // no control plane was upgraded
	}}
}

// hasKept reports whether a node's files are those of its copies.
func (w *nodeWalk) hasKept(ctx context.Context, t *task.Host, paths ...string) (bool, error) {
	kept, ok := w.kept[t.Name]
	if !ok {
		return true, nil
	}
	return kept.AreSame(ctx, t, paths...)
}

// kubeadmTemporary is where kubeadm keeps the manifests and the etcd data that its upgrades replace, and never
// removes them.
const kubeadmTemporary = "/etc/kubernetes/tmp"

//go:embed scripts/tidy-upgrade.sh
var tidyUpgradeScript string

// tidyTask removes what a finished upgrade leaves on nodes and no rollback needs.
func tidyTask() task.Task {
	args := func(do string) []string {
		return host.Script("tidy-upgrade.sh", tidyUpgradeScript, do, marks.CopiesDir, kubeadmTemporary)
	}
	return task.Task{
		Name: "tidy", Roles: []manifest.Role{manifest.RoleCluster}, Independent: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			out, err := t.Output(ctx, args("list")...)
			if err == nil && len(out) > 0 {
				first, _, _ := strings.Cut(string(out), "\n")
				task.Because(ctx, "%s is left of an upgrade", first)
			}
			return len(out) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error { return t.Run(ctx, args("remove")...) },
	}
}
