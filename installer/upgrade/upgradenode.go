package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// nodePrograms returns the tasks that install a node's own programs.
func nodePrograms(c *manifest.Cluster) []task.Task {
	return append(plan.ContainerTasks(c), kubeadm.KubeletTask(c))
}

func filesOf(tasks []task.Task) []task.Place {
	var files []task.Place
	for _, t := range tasks {
		files = append(files, t.Files...)
	}
	return files
}

// isCurrent reports whether a node has the cluster's version, the cluster file's settings, and the bundle's programs.
func isCurrent(ctx context.Context, t *task.Host) (bool, error) {
	if ok, err := member.Records(ctx, t, member.Path); err != nil || !ok {
		return false, err
	}
	for _, task := range nodePrograms(t.Site.Cluster) {
		if ok, err := t.Site.IsDone(ctx, task, t); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// kubeletIsOld reports whether a node has the kubelet, its settings and the programs of the release before.
func (w *nodeWalk) kubeletIsOld(ctx context.Context, t *task.Host) (bool, error) {
	states, err := w.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil {
		return false, err
	}
	n := kube.FindNode(states, t.Name)
	if n == nil || n.Status.NodeInfo.KubeletVersion != w.Cluster.Kubernetes.Version || !kube.IsNodeReady(n) {
		return false, nil
	}
	for _, step := range nodePrograms(w.Cluster) {
		if ok, err := w.IsDone(ctx, step, t); err != nil || !ok {
			return false, err
		}
	}
	if !t.Is(manifest.RoleControlPlane) {
		if ok, err := isRecorded(ctx, t); err != nil || !ok {
			return false, err
		}
	}
	return w.hasKept(ctx, t, kubeadm.KubeletSettings()...)
}

// drainTask cordons and drains a node. A single node keeps its pods: they could run nowhere else.
func (w *nodeWalk) drainTask() task.Task {
	return task.Task{Name: "drain", Done: task.Never, Do: func(ctx context.Context, t *task.Host) error {
		api := w.FirstControlPlane().Kube()
		nodes, err := api.Nodes(ctx)
		if err != nil {
			return err
		}
		n := kube.FindNode(nodes, t.Name)
		if n == nil {
			return fmt.Errorf("%s is no longer a node of the cluster", t.Name)
		}
		if len(nodes) == 1 {
			return nil
		}
		if !marks.InUpgrade(n) && !n.Spec.Unschedulable {
			// The annotation comes first, so that a run killed in between leaves no node cordoned for ever.
			if err := api.AnnotateNode(ctx, t.Name, marks.UpgradingAnnotation+"="+w.Cluster.Kubernetes.Version,
				"--overwrite"); err != nil {
				return err
			}
		}
		return api.Drain(ctx, t.Name, kube.Drain{Timeout: w.how.DrainTimeout, DisableEviction: w.how.DisableEviction})
	}}
}

// kubeletConfigTask has kubeadm write the settings of a worker's kubelet that are in the cluster.
func kubeletConfigTask(c *manifest.Cluster) task.Task {
	return task.Task{Name: "kubelet-config", Files: kubeadmFiles(c, "kubeadm"), Done: task.Never, Do: upgradeOther}
}

// kubeadmFiles returns one program of the kubelet's task: kubeadm is installed on a node before the kubelet.
func kubeadmFiles(c *manifest.Cluster, name string) []task.Place {
	return slices.DeleteFunc(slices.Clone(kubeadm.KubeletTask(c).Files),
		func(p task.Place) bool { return p.Component != name })
}

// formerKubeletConfig returns the task that puts the settings of a node's kubelet back. A worker that joined after
// the upgrade has no copies, and kubeadm writes the settings that are in the cluster again.
func (w *nodeWalk) formerKubeletConfig(t *task.Host) []task.Task {
	settings := kubeletConfigTask(w.Cluster)
	kept, ok := w.kept[t.Name]
	switch {
	case ok:
		settings.Files, settings.Do = nil, func(ctx context.Context, t *task.Host) error {
			return kept.PutBack(ctx, t, kubeadm.KubeletSettings()...)
		}
	case t.Is(manifest.RoleControlPlane): // its upgrade had not begun
		settings.Files, settings.Do = nil, func(context.Context, *task.Host) error { return nil }
	}
	return []task.Task{settings}
}

// restarted makes the kubelet's task restart it even if the programs exist: its settings are new.
func restarted(kubelet task.Task) task.Task {
	install := kubelet.Do
	kubelet.Done = task.Never
	kubelet.Do = func(ctx context.Context, t *task.Host) error {
		if err := install(ctx, t); err != nil {
			return err
		}
		return t.Systemctl(ctx, "start", "kubelet.service") // install only restarts a running kubelet
	}
	return kubelet
}

// readyTask waits until a node is back, as a check says.
func (w *nodeWalk) readyTask(check func(ctx context.Context, t *task.Host) error) task.Task {
	return task.Task{Name: "ready", Do: func(ctx context.Context,
		t *task.Host,
	) error {
		return w.settled(ctx, t, check)
	}}
}

// settled waits until a check of a node holds. On a control plane it must hold for a while: a new kubelet answers at
// once, and then restarts API server and etcd because it computes their state in another way.
func (w *nodeWalk) settled(ctx context.Context, t *task.Host,
	check func(ctx context.Context, t *task.Host) error,
) error {
	const pause = 2 * time.Second
	return task.Eventually(ctx, health.PodsWait, func(ctx context.Context) error {
		if err := check(ctx, t); err != nil || !t.Is(manifest.RoleControlPlane) {
			return err
		}
		for left := w.settle; left > 0; left -= pause {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(min(left, pause)):
			}
			if err := check(ctx, t); err != nil {
				return err
			}
		}
		return nil
	})
}

// nodeIsBack checks that a node's API server answers with the run's version, and its kubelet.
func (w *nodeWalk) nodeIsBack(ctx context.Context, t *task.Host) error {
	if t.Is(manifest.RoleControlPlane) {
		if err := serverIsReady(ctx, t); err != nil {
			return err
		}
	}
	return w.kubeletIsBack(ctx, t)
}

// kubeletIsBack checks that a node is ready with the kubelet of the run's version, and that the pods of Kubernetes
// and of the pod network on it are ready. A restarted kubelet reports at once, so the node's older state does not
// last.
func (w *nodeWalk) kubeletIsBack(ctx context.Context, t *task.Host) error {
	api := w.FirstControlPlane().Kube()
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return err
	}
	n := kube.FindNode(nodes, t.Name)
	switch want := w.Cluster.Kubernetes.Version; {
	case n == nil:
		return fmt.Errorf("%s is no longer a node of the cluster", t.Name)
	case n.Status.NodeInfo.KubeletVersion != want:
		return fmt.Errorf("%s still reports kubelet %s, not %s", t.Name, n.Status.NodeInfo.KubeletVersion, want)
	case !kube.IsNodeReady(n) && w.Cluster.CNI.Type.Installed():
		return fmt.Errorf("node %s is not ready: %s", t.Name, kube.NodeCondition(n, corev1.NodeReady).Message)
	}
	var errs []error
	for _, namespace := range addon.OwnNamespaces(t.Site.Cluster) {
		pods, err := api.Pods(ctx, "--namespace="+namespace, "--field-selector=spec.nodeName="+t.Name)
		if err != nil {
			return err
		}
		errs = append(errs, notReady(pods)...)
		if namespace == kube.SystemNamespace && t.Is(manifest.RoleControlPlane) {
			errs = append(errs, notReported(pods, kube.ControlPlanePods(t.Name,
				t.Site.Cluster.Etcd.Type == manifest.EtcdInternal))...)
		}
	}
	return errors.Join(errs...)
}

// notReported returns an error for each name without a pod. A restarted kubelet reports its static pods one after the
// other.
func notReported(pods []corev1.Pod, names []string) []error {
	var errs []error
	for _, name := range names {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == name }) {
			errs = append(errs, fmt.Errorf("the API does not know the static pod %s yet", name))
		}
	}
	return errs
}

// notReady returns an error for each pod that should be ready and is not.
func notReady(pods []corev1.Pod) []error {
	var errs []error
	for _, p := range pods {
		if !kube.IsPodOver(&p) && !kube.IsPodReady(&p) {
			errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s", p.Namespace, p.Name,
				task.OrDash(p.Spec.NodeName), kube.NotReadyReason(&p)))
		}
	}
	return errs
}

// recordTask records that a node has the release and the settings of the bundle, and ends its work.
func recordTask(end func(ctx context.Context, t *task.Host) error) task.Task {
	return task.Task{Name: "record", Done: task.Never, Do: func(ctx context.Context, t *task.Host) error {
		if err := t.Write(ctx, member.File(t.Site)); err != nil {
			return err
		}
		return end(ctx, t)
	}}
}

// finish marks the copies of a node, so that the next upgrade keeps anew, and removes the stamps of unfinished work.
func finish(ctx context.Context, t *task.Host) error {
	if err := marks.FinishCopies(ctx, t); err != nil {
		return err
	}
	return marks.EndUpgrade(ctx, t)
}

func uncordonTask() task.Task { return task.Task{Name: "uncordon", Done: task.Never, Do: uncordon} }

// uncordon uncordons a node that an upgrade has cordoned. A single API server may just be restarting.
func uncordon(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, apiWait, func(ctx context.Context) error { return uncordonNow(ctx, t) })
}

func uncordonNow(ctx context.Context, t *task.Host) error {
	api := t.Site.FirstControlPlane().Kube()
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return err
	}
	n := kube.FindNode(nodes, t.Name)
	if n == nil {
		return fmt.Errorf("%s is no longer a node of the cluster", t.Name)
	}
	if !marks.InUpgrade(n) {
		return nil
	}
	if err := api.Uncordon(ctx, t.Name); err != nil {
		return err
	}
	return api.AnnotateNode(ctx, t.Name, marks.UpgradingAnnotation+"-")
}
