package installer

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

//go:embed scripts/keep-files.sh
var keepFilesScript string

// keepTask copies the files that an upgrade replaces on a node: the programs, and on a control plane all of
// /etc/kubernetes and the cluster's objects. Copies of a node stay when the upgrade is continued, those of control planes once kubeadm has
// begun to change one: before, they may be of a run that stopped long ago.
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
			args := host.Script("keep-files.sh", keepFilesScript, to.Dir, "/")
			for _, f := range filesOf(nodePrograms(c)) {
				args = append(args, below(f.Path)...)
			}
			runtime := cri.RuntimeOf(c)
			args = append(append(args, "--"), below("/etc/kubernetes", runtime.Config)...)
			for _, unit := range runtime.Units {
				args = append(args, below("/etc/systemd/system/"+unit)...)
			}
			args = append(args, below("/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d", member.Path)...)
			if err := t.Run(ctx, append(args, below(kubeletSettings()...)...)...); err != nil {
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

// hasBegun reports whether the upgrade or a rollback of it has begun to change a control plane, and with it the cluster's objects.
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

// nodePrograms returns the tasks that install a node's own programs.
func nodePrograms(c *manifest.Cluster) []task.Task {
	return append(containerTasks(c), kubeadm.KubeletTask(c))
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

// controlPlaneTask upgrades the API server, controllers, scheduler and kubeadm's etcd on a control plane. kubeadm
// restores the previous pods if new ones do not start; an interrupted kubeadm can be run again.
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-upgrade/#recovering-from-a-failure-state
func (w *nodeWalk) controlPlaneTask() task.Task {
	return task.Task{
		Name:  "control-plane",
		Files: kubeadmFiles(w.Cluster, "kubeadm"),
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if ok, err := member.Records(ctx, t, member.Path); err != nil || ok {
				return ok, err
			}
			return member.Records(ctx, t, string(marks.ServerUpgraded))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if _, err := kubeadm.Stop(ctx, t, marks.UpgradeBegun); err != nil {
				return err
			}
			if err := t.Write(ctx, marks.UpgradeBegun.File(nil)); err != nil {
				return err
			}
			upgrade := upgradeOther
			if t.Name == t.Site.FirstControlPlane().Name {
				upgrade = upgradeFirst
			}
			if err := upgrade(ctx, t); err != nil {
				return err
			}
			if err := task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error { return serverIsReady(ctx, t) }); err != nil {
				return err
			}
			if err := t.Write(ctx, marks.ServerUpgraded.File(member.File(t.Site).Data)); err != nil {
				return err
			}
			return marks.Remove(ctx, t, marks.UpgradeBegun)
		},
	}
}

// upgradeFirst upgrades the first control plane and the objects that the cluster has once. kubeadm reads settings from
// the cluster and not from a file, so the cluster file's settings are uploaded first.
func upgradeFirst(ctx context.Context, t *task.Host) error {
	config, err := kubeadm.ConfigOf(ctx, t.Site)
	if err != nil {
		return err
	}
	id, settings, _, err := member.Recorded(ctx, t)
	if err != nil {
		return err
	}
	j, err := kubeadm.NodeOf(ctx, t)
	if err != nil {
		return err
	}
	data, err := upload(config, j, id.Version)
	if err != nil {
		return err
	}
	if err := kubeadm.Run(ctx, t, data, "init", "phase", "upload-config", "all"); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	version := t.Site.Cluster.Kubernetes.Version
	if err := kubeadmApply(ctx, t, version); err != nil {
		return err
	}
	proxy := func(s member.FixedSetting) bool {
		return s.Name == "kubernetes.kubeProxy" || s.Name == "kubernetes.proxyMode"
	}
	if now, _ := member.Changed(t.Site, settings); !slices.ContainsFunc(now, proxy) {
		return nil
	}
	if data, err = upload(config, j, version); err != nil {
		return err
	}
	if err := kubeadm.Run(ctx, t, data, "init", "phase", "addon", "kube-proxy"); err != nil {
		return fmt.Errorf("settings of kube-proxy: %w", err)
	}
	_, err = t.Kubectl(ctx, "rollout", "restart", "daemonset", "kube-proxy", "--namespace=kube-system")
	return err
}

// applyTries is how often an upgrade is begun while Jobs are late. Up to 1.35 kubeadm gives the Job of its preflight 15 seconds, from 1.36 on 60
// (createJob in cmd/kubeadm/app/phases/upgrade/health.go). A controller manager that follows one that was killed needs 15 of them for its lease alone.
const applyTries = 4

// kubeadmApply upgrades a control plane. kubeadm's preflight changes nothing, so that it can be run again.
func kubeadmApply(ctx context.Context, t *task.Host, version string) error {
	for try := 1; ; try++ {
		err := kubeadmUpgrade(ctx, t, "apply", version, "--yes")
		var exit *host.ExitError
		if late := errors.As(err, &exit) && strings.Contains(exit.Stderr, "[ERROR CreateJob]"); !late || try == applyTries {
			return err
		}
	}
}

func upgradeOther(ctx context.Context, t *task.Host) error { return kubeadmUpgrade(ctx, t, "node") }

// kubeadmUpgrade runs kubeadm with the host's patches, which it would otherwise ignore.
func kubeadmUpgrade(ctx context.Context, t *task.Host, args ...string) error {
	there, err := t.Test(ctx, "test", "-d", kubeadm.PatchesDir)
	if err != nil {
		return err
	}
	if there {
		args = append(args, "--patches="+kubeadm.PatchesDir)
	}
	if checks := kubeadm.IgnoredChecks(t.Site.Cluster); len(checks) > 0 {
		args = append(args, "--ignore-preflight-errors="+strings.Join(checks, ","))
	}
	return t.Run(ctx, append([]string{"kubeadm", "upgrade"}, args...)...)
}

// upload returns the input of kubeadm's phases that store settings in a cluster, with a version of Kubernetes.
func upload(k kubeadm.Config, j kubeadm.Node, version string) ([]byte, error) {
	cluster := maps.Clone(k.ClusterConfiguration())
	cluster["kubernetesVersion"] = version
	return kube.Documents(
		kube.Document{
			"apiVersion":       k.APIVersion(),
			"kind":             "InitConfiguration",
			"localAPIEndpoint": kubeadm.LocalEndpoint(j.IPs[0]),
			"nodeRegistration": k.Registration(j),
		},
		cluster,
		k.KubeletConfiguration(),
		k.KubeProxyConfiguration(),
	)
}

// serverIsReady asks a control plane's own API server for its readiness and version.
func serverIsReady(ctx context.Context, t *task.Host) error {
	if _, err := t.Kubectl(ctx, t.ServerFlag(), "get", "--raw=/readyz"); err != nil {
		return fmt.Errorf("API server of %s: %w", t.Name, err)
	}
	switch version, err := apiVersion(ctx, t, t); {
	case err != nil:
		return fmt.Errorf("API server of %s: %w", t.Name, err)
	case version != t.Site.Cluster.Kubernetes.Version:
		return fmt.Errorf("the API server of %s still is %s", t.Name, version)
	}
	return nil
}

// kubeadmFiles returns one program of the kubelet's task: kubeadm is installed on a node before the kubelet.
func kubeadmFiles(c *manifest.Cluster, name string) []task.Place {
	return slices.DeleteFunc(slices.Clone(kubeadm.KubeletTask(c).Files), func(p task.Place) bool { return p.Component != name })
}

// finish marks the copies of a node, so that the next upgrade keeps anew, and removes the stamps of unfinished work.
func finish(ctx context.Context, t *task.Host) error {
	if err := marks.FinishCopies(ctx, t); err != nil {
		return err
	}
	return marks.EndUpgrade(ctx, t)
}

// restarted makes the kubelet's task restart it even if the programs exist: its settings are new.
func restarted(kubelet task.Task) task.Task {
	install := kubelet.Do
	kubelet.Done = never
	kubelet.Do = func(ctx context.Context, t *task.Host) error {
		if err := install(ctx, t); err != nil {
			return err
		}
		return t.Systemctl(ctx, "start", "kubelet.service") // install only restarts a running kubelet
	}
	return kubelet
}

// drainTask cordons and drains a node. A single node keeps its pods: they could run nowhere else.
func (w *nodeWalk) drainTask() task.Task {
	return task.Task{Name: "drain", Done: never, Do: func(ctx context.Context, t *task.Host) error {
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
			if err := api.AnnotateNode(ctx, t.Name, marks.UpgradingAnnotation+"="+w.Cluster.Kubernetes.Version, "--overwrite"); err != nil {
				return err
			}
		}
		return api.Drain(ctx, t.Name, kube.Drain{Timeout: w.how.DrainTimeout, DisableEviction: w.how.DisableEviction})
	}}
}

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

// settled waits until a check of a node holds. On a control plane it must hold for a while: a new kubelet answers at once, and then restarts
// API server and etcd because it computes their state in another way.
func (w *nodeWalk) settled(ctx context.Context, t *task.Host, check func(ctx context.Context, t *task.Host) error) error {
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

// kubeletIsBack checks that a node is ready with the kubelet of the run's version, and that the pods of Kubernetes and of
// the pod network on it are ready. A restarted kubelet reports at once, so the node's older state does not last.
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
			errs = append(errs, notReported(pods, kube.ControlPlanePods(t.Name, t.Site.Cluster.Etcd.Type == manifest.EtcdInternal))...)
		}
	}
	return errors.Join(errs...)
}

// notReported returns an error for each name without a pod. A restarted kubelet reports its static pods one after the other.
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
			errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s", p.Namespace, p.Name, task.OrDash(p.Spec.NodeName), kube.NotReadyReason(&p)))
		}
	}
	return errs
}
