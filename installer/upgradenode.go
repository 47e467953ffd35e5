package installer

import (
	"context"
	_ "embed" // scripts
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/host"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// upgradeBegun says that kubeadm was started to upgrade a control plane, serverMark to which version it succeeded.
	upgradeBegun = stampDir + "/upgrade-begun"
	serverMark   = stampDir + "/upgrade-control-plane"
	// keptDir has, below the version that a node had, what an upgrade replaces. It is below /usr/local, where the programs
	// are, so that it can hold them as links.
	keptDir = "/usr/local/lib/kkbundle/before-upgrade"
)

//go:embed scripts/keep-files.sh
var keepFilesScript string

// keepTask keeps what an upgrade replaces on a node: the programs, and on a control plane all of /etc/kubernetes. It is
// done once for a node and a version, however often the upgrade is continued.
func keepTask(c *manifest.Cluster) Task {
	dir := func(ctx context.Context, t *Target) (string, error) {
		id, _, _, err := t.recorded(ctx)
		return path.Join(keptDir, id.version), err
	}
	return Task{
		Name: "keep",
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if current, err := t.isCurrent(ctx); err != nil || current {
				return current, err
			}
			to, err := dir(ctx, t)
			if err != nil {
				return false, err
			}
			return t.test(ctx, "test", "-e", path.Join(to, "complete"))
		},
		Do: func(ctx context.Context, t *Target) error {
			to, err := dir(ctx, t)
			if err != nil {
				return err
			}
			args := host.Script("keep-files.sh", keepFilesScript, to)
			for _, f := range filesOf(nodePrograms(c)) {
				args = append(args, f.Path)
			}
			runtime := runtimeOf(c)
			args = append(args, "--", "/etc/kubernetes", runtime.config)
			for _, unit := range runtime.units {
				args = append(args, "/etc/systemd/system/"+unit)
			}
			return t.command(ctx, append(args, "/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d",
				"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/instance-config.yaml", memberPath)...)
		},
	}
}

// nodePrograms are the tasks that put a node's own programs there.
func nodePrograms(c *manifest.Cluster) []Task { return append(containerTasks(c), kubeletTask(c)) }

func filesOf(tasks []Task) []Place {
	var files []Place
	for _, t := range tasks {
		files = append(files, t.Files...)
	}
	return files
}

// isCurrent tells whether nothing is left to do on a node: it was brought to the cluster's version with the cluster file's
// settings, and has the bundle's programs.
func (t *Target) isCurrent(ctx context.Context) (bool, error) {
	if ok, err := t.records(ctx, memberPath); err != nil || !ok {
		return false, err
	}
	for _, task := range nodePrograms(t.run.cluster) {
		if ok, err := t.run.isDone(ctx, task, t); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// serverFile says which version kubeadm has brought a control plane to, and with which settings.
func (r *Site) serverFile() textFile {
	return textFile{serverMark, 0o600, r.memberFile().data}
}

// controlPlaneTask brings the API server, its companions and kubeadm's etcd on a control plane to the run's version. kubeadm
// puts the pods of before back by itself if new ones do not start; one that was interrupted can be run again.
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-upgrade/#recovering-from-a-failure-state
func (u *upgrade) controlPlaneTask() Task {
	return Task{
		Name:  "control-plane",
		Files: kubeadmFiles(u.cluster, "kubeadm"),
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if ok, err := t.records(ctx, memberPath); err != nil || ok {
				return ok, err
			}
			return t.records(ctx, serverMark)
		},
		Do: func(ctx context.Context, t *Target) error {
			if _, err := t.stopKubeadm(ctx, upgradeBegun); err != nil {
				return err
			}
			if err := t.write(ctx, textFile{upgradeBegun, 0o600, nil}); err != nil {
				return err
			}
			upgrade := t.upgradeOther
			if t.Name == t.run.firstControlPlane().Name {
				upgrade = t.upgradeFirst
			}
			if err := upgrade(ctx); err != nil {
				return err
			}
			if err := eventually(ctx, nodesWait, t.serverIsReady); err != nil {
				return err
			}
			if err := t.write(ctx, t.run.serverFile()); err != nil {
				return err
			}
			return t.command(ctx, "rm", "-f", upgradeBegun)
		},
	}
}

// upgradeFirst upgrades the first control plane, and with it what the cluster has once. kubeadm takes the settings from the
// cluster and not from a file, so the cluster file's go there before.
func (t *Target) upgradeFirst(ctx context.Context) error {
	config, err := t.run.kubeadm()
	if err != nil {
		return err
	}
	id, settings, _, err := t.recorded(ctx)
	if err != nil {
		return err
	}
	j, err := t.joining()
	if err != nil {
		return err
	}
	data, err := config.upload(j, id.version)
	if err != nil {
		return err
	}
	if err := t.withKubeadmFile(ctx, data, "init", "phase", "upload-config", "all"); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	version := t.run.cluster.Kubernetes.Version
	if err := t.kubeadmUpgrade(ctx, "apply", version, "--yes"); err != nil {
		return err
	}
	proxy := func(s fixedSetting) bool { return s.name == "kubernetes.kubeProxy" || s.name == "kubernetes.proxyMode" }
	if now, _ := t.run.changed(settings); !slices.ContainsFunc(now, proxy) {
		return nil
	}
	if data, err = config.upload(j, version); err != nil {
		return err
	}
	if err := t.withKubeadmFile(ctx, data, "init", "phase", "addon", "kube-proxy"); err != nil {
		return fmt.Errorf("settings of kube-proxy: %w", err)
	}
	_, err = t.kubectl(ctx, "rollout", "restart", "daemonset", "kube-proxy", "--namespace=kube-system")
	return err
}

func (t *Target) upgradeOther(ctx context.Context) error { return t.kubeadmUpgrade(ctx, "node") }

// kubeadmUpgrade runs kubeadm with the patches that are on the host, which it would else leave out.
func (t *Target) kubeadmUpgrade(ctx context.Context, args ...string) error {
	there, err := t.test(ctx, "test", "-d", patchesDir)
	if err != nil {
		return err
	}
	if there {
		args = append(args, "--patches="+patchesDir)
	}
	return t.command(ctx, append([]string{"kubeadm", "upgrade"}, args...)...)
}

// upload is for the phases of kubeadm that put settings into a cluster. Before an upgrade the version is still that of
// before.
func (k kubeadmConfig) upload(j joining, version string) ([]byte, error) {
	cluster := maps.Clone(k.clusterConfiguration())
	cluster["kubernetesVersion"] = version
	return kube.Documents(
		document{
			"apiVersion":       k.apiVersion(),
			"kind":             "InitConfiguration",
			"localAPIEndpoint": localEndpoint(j.ips[0]),
			"nodeRegistration": k.registration(j),
		},
		cluster,
		k.kubeletConfiguration(),
		k.kubeProxyConfiguration(),
	)
}

// serverIsReady asks the API server of a control plane itself, for its version too.
func (t *Target) serverIsReady(ctx context.Context) error {
	if _, err := t.kubectl(ctx, t.server(), "get", "--raw=/readyz"); err != nil {
		return fmt.Errorf("API server of %s: %w", t.Name, err)
	}
	switch version, err := t.apiVersion(ctx, t); {
	case err != nil:
		return fmt.Errorf("API server of %s: %w", t.Name, err)
	case version != t.run.cluster.Kubernetes.Version:
		return fmt.Errorf("the API server of %s still is %s", t.Name, version)
	}
	return nil
}

// kubeadmFiles are one program of the kubelet's task: kubeadm goes to a node before the kubelet does.
func kubeadmFiles(c *manifest.Cluster, name string) []Place {
	return slices.DeleteFunc(slices.Clone(kubeletTask(c).Files), func(p Place) bool { return p.Component != name })
}

// node brings a node to the run's version, unless it is there.
func (u *upgrade) node(ctx context.Context, phase string, t *Target) error {
	current, err := t.isCurrent(inTask(ctx, phase+"/node"))
	if err != nil {
		return &TaskError{Phase: phase, Task: "node", Host: t.Name, Err: err}
	}
	if current {
		if err := t.uncordon(inTask(ctx, phase+"/uncordon")); err != nil { // a run may have been killed just before
			return &TaskError{Phase: phase, Task: "uncordon", Host: t.Name, Err: err}
		}
		u.tell(Event{Phase: phase, Task: "node", Host: t.Name, State: Done})
		return nil
	}
	for _, task := range u.nodeTasks(t) {
		if err := u.taskOn(ctx, phase, task, t); err != nil {
			return err
		}
	}
	return nil
}

// nodeTasks are what is done on a node that is not current, in order. The record of the cluster comes when the node is
// back, and pods come back last.
func (u *upgrade) nodeTasks(t *Target) []Task {
	tasks := []Task{keepTask(u.cluster), u.drainTask()}
	if !t.Is(manifest.RoleControlPlane) {
		tasks = append(tasks, Task{
			Name: "kubelet-config", Files: kubeadmFiles(u.cluster, "kubeadm"), Done: eachTime,
			Do: func(ctx context.Context, t *Target) error { return t.upgradeOther(ctx) },
		})
	}
	tasks = append(tasks, containerTasks(u.cluster)...)
	return append(tasks,
		restarted(kubeletTask(u.cluster)),
		Task{Name: "ready", Do: func(ctx context.Context, t *Target) error {
			return eventually(ctx, podsWait, func(ctx context.Context) error { return u.nodeIsBack(ctx, t) })
		}},
		Task{Name: "record", Done: eachTime, Do: func(ctx context.Context, t *Target) error {
			if err := t.write(ctx, t.run.memberFile()); err != nil {
				return err
			}
			return t.command(ctx, "rm", "-f", serverMark)
		}},
		Task{Name: "uncordon", Done: eachTime, Do: func(ctx context.Context, t *Target) error { return t.uncordon(ctx) }},
	)
}

// restarted makes the kubelet's task restart it, also where the programs are there: its settings are new.
func restarted(kubelet Task) Task {
	install := kubelet.Do
	kubelet.Done = eachTime
	kubelet.Do = func(ctx context.Context, t *Target) error {
		if err := install(ctx, t); err != nil {
			return err
		}
		return t.systemctl(ctx, "start", "kubelet.service") // which install only restarts if it runs
	}
	return kubelet
}

// eachTime is for tasks that are done each time that a node is worked on.
func eachTime(context.Context, *Target) (bool, error) { return false, nil }

// drainTask makes a node unschedulable and lets its pods go elsewhere. A node that is the only one keeps them: they would
// have nowhere to go.
func (u *upgrade) drainTask() Task {
	return Task{Name: "drain", Done: eachTime, Do: func(ctx context.Context, t *Target) error {
		api := u.firstControlPlane().kube()
		nodes, err := api.Nodes(ctx)
		if err != nil {
			return err
		}
		n := kube.FindNode(nodes, t.Name)
		if n == nil {
			return fmt.Errorf("%s is not a node of the cluster any more", t.Name)
		}
		if len(nodes) == 1 {
			return nil
		}
		if _, marked := n.Annotations[upgradeMark]; !marked && !n.Spec.Unschedulable {
			// The mark comes before what it says, so that a run that is killed between the two does not leave a node
			// unschedulable for ever.
			if err := api.AnnotateNode(ctx, t.Name, upgradeMark+"="+u.cluster.Kubernetes.Version, "--overwrite"); err != nil {
				return err
			}
		}
		return api.Drain(ctx, t.Name, kube.Drain{Timeout: u.how.DrainTimeout, DisableEviction: u.how.DisableEviction})
	}}
}

// uncordon lets pods come back to a node that an upgrade has made unschedulable.
func (t *Target) uncordon(ctx context.Context) error {
	api := t.run.firstControlPlane().kube()
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return err
	}
	n := kube.FindNode(nodes, t.Name)
	if n == nil {
		return fmt.Errorf("%s is not a node of the cluster any more", t.Name)
	}
	if _, marked := n.Annotations[upgradeMark]; !marked {
		return nil
	}
	if err := api.Uncordon(ctx, t.Name); err != nil {
		return err
	}
	return api.AnnotateNode(ctx, t.Name, upgradeMark+"-")
}

// nodeIsBack tells whether a node is ready with the kubelet of the run's version, its API server answers, and the pods of
// Kubernetes and of the pod network on it are ready. A kubelet that was restarted reports at once, so what the node says of
// the time before does not last.
func (u *upgrade) nodeIsBack(ctx context.Context, t *Target) error {
	api := u.firstControlPlane().kube()
	if t.Is(manifest.RoleControlPlane) {
		if err := t.serverIsReady(ctx); err != nil {
			return err
		}
	}
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return err
	}
	n := kube.FindNode(nodes, t.Name)
	switch want := u.cluster.Kubernetes.Version; {
	case n == nil:
		return fmt.Errorf("%s is not a node of the cluster any more", t.Name)
	case n.Status.NodeInfo.KubeletVersion != want:
		return fmt.Errorf("%s still reports kubelet %s, not %s", t.Name, n.Status.NodeInfo.KubeletVersion, want)
	case !kube.IsNodeReady(n) && u.cluster.CNI.Type != manifest.NetworkNone:
		return fmt.Errorf("node %s is not ready: %s", t.Name, kube.NodeCondition(n, corev1.NodeReady).Message)
	}
	var errs []error
	for _, namespace := range ownNamespaces(t.run.cluster) {
		pods, err := api.Pods(ctx, "--namespace="+namespace, "--field-selector=spec.nodeName="+t.Name)
		if err != nil {
			return err
		}
		errs = append(errs, notReady(pods)...)
	}
	return errors.Join(errs...)
}

// notReady says which pods are not ready and should be.
func notReady(pods []corev1.Pod) []error {
	var errs []error
	for _, p := range pods {
		if !kube.IsPodOver(&p) && !kube.IsPodReady(&p) {
			errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s", p.Namespace, p.Name, orDash(p.Spec.NodeName), kube.NotReadyReason(&p)))
		}
	}
	return errs
}
