package upgrade

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

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
			if err := task.Eventually(ctx, task.NodeReadyTimeout,
				func(ctx context.Context) error { return serverIsReady(ctx, t) }); err != nil {
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

// applyTries is how often an upgrade is begun while Jobs are late. Up to 1.35 kubeadm gives the Job of its preflight
// 15 seconds, from 1.36 on 60 (createJob in cmd/kubeadm/app/phases/upgrade/health.go). A controller manager that
// follows one that was killed needs 15 of them for its lease alone.
const applyTries = 4

// kubeadmApply upgrades a control plane. kubeadm's preflight changes nothing, so that it can be run again.
func kubeadmApply(ctx context.Context, t *task.Host, version string) error {
	for try := 1; ; try++ {
		err := kubeadmUpgrade(ctx, t, "apply", version, "--yes")
		var exit *host.ExitError
		if late := errors.As(err, &exit) && strings.Contains(exit.Stderr, "[ERROR CreateJob]"); !late ||
			try == applyTries {
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
	patches := ""
	if there {
		patches = kubeadm.PatchesDir
	}
	return kubeadmUpgradeWith(ctx, t, patches, args...)
}

// kubeadmUpgradeWith runs kubeadm with a directory of patches, "" for none.
func kubeadmUpgradeWith(ctx context.Context, t *task.Host, patches string, args ...string) error {
	if patches != "" {
		args = append(args, "--patches="+patches)
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
	if err := t.ServerReady(ctx); err != nil {
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

// formerPlaneTask brings etcd, API server, controllers and scheduler of a control plane back.
func (w *nodeWalk) formerPlaneTask() task.Task {
	return task.Task{
		Name: "control-plane",
		Done: w.isBack,
		Do: func(ctx context.Context, t *task.Host) error {
			if err := w.putManifests(ctx, t); err != nil {
				return err
			}
			if err := w.settled(ctx, t, w.planeIsBack); err != nil {
				return err
			}
			return recordTask(marks.EndUpgrade).Do(ctx, t)
		},
	}
}

// putManifests puts etcd's manifest back, waits for the member, and then puts the others back: an API server without
// etcd would only restart.
func (w *nodeWalk) putManifests(ctx context.Context, t *task.Host) error {
	kept, ok := w.kept[t.Name]
	if !ok {
		return nil // its upgrade had not begun
	}
	if w.Cluster.Etcd.Type == manifest.EtcdInternal {
		same, err := w.hasKept(ctx, t, memberManifest()...)
		if err != nil {
			return err
		}
		if !same {
			if err := kept.PutBack(ctx, t, memberManifest()...); err != nil {
				return err
			}
		}
		if err := w.memberIsBack(ctx, t, kept); err != nil {
			return err
		}
	}
	if err := kept.PutBack(ctx, t, serverManifests()...); err != nil {
		return err
	}
	return task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error { return serverIsReady(ctx, t) })
}

func memberManifest() []string { return []string{kube.ManifestsDir + "/etcd.yaml"} }

func serverManifests() []string {
	var list []string
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		list = append(list, kube.ManifestsDir+"/"+name+".yaml")
	}
	return list
}

// memberIsBack waits until the member of etcd is the release of the copies and healthy.
func (w *nodeWalk) memberIsBack(ctx context.Context, t *task.Host, kept marks.Copies) error {
	want, err := etcdRelease(ctx, t, kept.Path(kube.ManifestsDir+"/etcd.yaml"))
	if err != nil {
		return err
	}
	return task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error {
		m, err := w.member(ctx, t)
		if err != nil {
			return fmt.Errorf("etcd of %s: %w", t.Name, err)
		}
		if m.Version != want {
			return fmt.Errorf("etcd of %s still is %s, not %s", t.Name, m.Version, want)
		}
		return nil
	})
}

// planeIsBack checks that a node is ready, and that the API knows the static pods of its manifests. A kubelet that
// does not reach the API server while both change leaves the pods before in the API for a minute or more.
func (w *nodeWalk) planeIsBack(ctx context.Context, t *task.Host) error {
	if err := w.nodeIsBack(ctx, t); err != nil {
		return err
	}
	pods, err := w.FirstControlPlane().Kube().Pods(ctx, "--namespace="+kube.SystemNamespace,
		"--field-selector=spec.nodeName="+t.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range kube.ControlPlanePods(t.Name, w.Cluster.Etcd.Type == manifest.EtcdInternal) {
		file := kube.ManifestsDir + "/" + strings.TrimSuffix(name, "-"+t.Name) + ".yaml"
		text, err := t.Read(ctx, file)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Name == name {
				errs = append(errs, isOfManifest(p, string(text)))
			}
		}
	}
	return errors.Join(errs...)
}

// isOfManifest compares the image of a static pod's container with that of its manifest.
func isOfManifest(p corev1.Pod, text string) error {
	want := imageOf(text)
	if want == "" || len(p.Spec.Containers) == 0 || p.Spec.Containers[0].Image == want {
		return nil
	}
	return fmt.Errorf("the API still knows pod %s with %s, not %s", p.Name, p.Spec.Containers[0].Image, want)
}

// imageOf returns the first image of a manifest of kubeadm, "" if there is none.
func imageOf(text string) string {
	for line := range strings.Lines(text) {
		if image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok {
			return strings.Trim(image, `"'`)
		}
	}
	return ""
}

// isBack reports whether a control plane is the one of the release before. It waits for an API server that misses a
// question.
func (w *nodeWalk) isBack(ctx context.Context, t *task.Host) (bool, error) {
	if ok, err := w.hasKept(ctx, t, slices.Concat(memberManifest(), serverManifests())...); err != nil || !ok {
		return false, err
	}
	if ok, err := isRecorded(ctx, t); err != nil || !ok {
		return false, err
	}
	ready := task.Eventually(ctx, w.patience, func(ctx context.Context) error { return serverIsReady(ctx, t) })
	return ready == nil, ctx.Err()
}

// isRecorded reports whether a node has the bundle's release and settings, without an unfinished upgrade or rollback.
func isRecorded(ctx context.Context, t *task.Host) (bool, error) {
	if ok, err := member.Records(ctx, t, member.Path); err != nil || !ok {
		return false, err
	}
	unfinished, err := marks.IsUnfinished(ctx, t)
	return !unfinished, err
}
