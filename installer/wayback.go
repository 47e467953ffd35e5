package installer

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// kubeadmTemporary is where kubeadm keeps the manifests and the etcd data that its upgrades replace, and never removes them.
const kubeadmTemporary = "/etc/kubernetes/tmp"

//go:embed scripts/tidy-upgrade.sh
var tidyUpgradeScript string

// kubeletSettings are the files that kubeadm writes for a node's kubelet.
func kubeletSettings() []string {
	return []string{"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/instance-config.yaml"}
}

// below returns paths as the scripts of copies take them, relative to the root directory.
func below(paths ...string) []string {
	list := make([]string, len(paths))
	for i, p := range paths {
		list[i] = strings.TrimPrefix(p, "/")
	}
	return list
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

// withoutState removes the parts of an object that belong to the API server. Without a resource version, a replacement is
// unconditional.
func withoutState(o map[string]any) map[string]any {
	delete(o, "status")
	if meta, ok := o["metadata"].(map[string]any); ok {
		for _, name := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink"} {
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

// wayBack returns the release that a node's copies lead to and their size, or nil if the node has none.
func wayBack(ctx context.Context, t *task.Host) (*report.WayBack, error) {
	kept, there, err := marks.FindCopies(ctx, t)
	if err != nil || !there {
		return nil, err
	}
	bytes, err := marks.CopiesSize(ctx, t)
	if err != nil {
		return nil, err
	}
	return &report.WayBack{Host: t.Name, Release: kept.Release(), Bytes: bytes}, nil
}

// addWaysBack adds the copies of the last upgrade to a status. Hosts that do not answer are in its findings.
func addWaysBack(ctx context.Context, r *engine.Run, out *report.Status) {
	nodes := r.Connected(manifest.RoleCluster)
	found := make([]*report.WayBack, len(nodes))
	_ = r.OnAll(nodes, func(i int, t *task.Host) error {
		if t.Err == nil {
			found[i], _ = wayBack(ctx, t)
		}
		return nil
	})
	for _, w := range found {
		if w != nil {
			out.WaysBack = append(out.WaysBack, *w)
		}
	}
}

// ForgetRollback removes the copies of the last upgrade from all nodes. It refuses while an upgrade is unfinished.
func ForgetRollback(ctx context.Context, o engine.Options) (engine.Report, error) {
	r, err := newInstall(o, engine.Upgrading())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		if err := (&nodeWalk{Run: r}).checkWithout(); err != nil {
			return err
		}
		for _, t := range r.Connected(manifest.RoleCluster) {
			kept, there, err := marks.FindCopies(task.InTask(ctx, "look"), t)
			if err != nil {
				return err
			}
			if there && !kept.Finished {
				return &RefusedError{
					r.Cluster.Metadata.Name, r.Cluster.Kubernetes.Version, "the copies of " + t.Name + " belong to an unfinished upgrade",
					"continue the upgrade or roll it back",
				}
			}
		}
		err := r.Phases(ctx, []task.Phase{{Name: "forget", Tasks: []task.Task{forgetTask()}}})
		if err == nil {
			tellLeft(r, hostNamesOf(r.Without()))
		}
		return err
	})
}

// forgetTask removes the copies of the last upgrade.
func forgetTask() task.Task {
	return task.Task{
		Name: "forget-copies", Roles: []manifest.Role{manifest.RoleCluster}, Independent: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.Test(ctx, "test", "-e", marks.CopiesDir)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return marks.ForgetCopies(ctx, t)
		},
	}
}

// keepReport writes the run's report, and keeps that of a complete upgrade for the estimate of the next one.
func (u *upgrade) keepReport(ctx context.Context, cause error) error {
	if err := u.KeepReport(ctx, cause); err != nil || cause != nil || u.DryRun || !u.worked {
		return err
	}
	data, err := u.Dir.Read(engine.ReportJSONFile)
	if err != nil {
		return err
	}
	return u.Dir.Write(marks.UpgradeReport, data)
}

// lastUpgrade returns the report of the last complete upgrade from this work directory, if there is one.
func (u *upgrade) lastUpgrade() (report.Run, bool) {
	var last report.Run
	data, err := u.Dir.Read(marks.UpgradeReport)
	if err != nil || capped.JSON(data, capped.MaxValues, &last) != nil || last.Version != 1 {
		return report.Run{}, false
	}
	return last, true
}
