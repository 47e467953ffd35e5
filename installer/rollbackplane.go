package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

func memberManifest() []string { return []string{kube.ManifestsDir + "/etcd.yaml"} }

func serverManifests() []string {
	var list []string
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		list = append(list, kube.ManifestsDir+"/"+name+".yaml")
	}
	return list
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

// planeIsBack checks that a node is ready, and that the API knows the static pods of its manifests. A kubelet that does not reach the API
// server while both change leaves the pods before in the API for a minute or more.
func (w *nodeWalk) planeIsBack(ctx context.Context, t *task.Host) error {
	if err := w.nodeIsBack(ctx, t); err != nil {
		return err
	}
	pods, err := w.FirstControlPlane().Kube().Pods(ctx, "--namespace="+kube.SystemNamespace, "--field-selector=spec.nodeName="+t.Name)
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

// putManifests puts etcd's manifest back, waits for the member, and then puts the others back: an API server without etcd
// would only restart.
func (w *nodeWalk) putManifests(ctx context.Context, t *task.Host) error {
	kept, ok := w.kept[t.Name]
	if !ok {
		return nil // its upgrade had not begun
	}
	put := host.Script("put-back.sh", putBackScript, kept.Dir, "/")
	if w.Cluster.Etcd.Type == manifest.EtcdInternal {
		same, err := w.hasKept(ctx, t, memberManifest()...)
		if err != nil {
			return err
		}
		if !same {
			if err := t.Run(ctx, append(slices.Clone(put), below(memberManifest()...)...)...); err != nil {
				return err
			}
		}
		if err := w.memberIsBack(ctx, t, kept); err != nil {
			return err
		}
	}
	if err := t.Run(ctx, append(put, below(serverManifests()...)...)...); err != nil {
		return err
	}
	return task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error { return serverIsReady(ctx, t) })
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

// etcdAllows refuses a rollback to an etcd that cannot read the data: the cluster's storage has a newer minor release.
func (b *rollback) etcdAllows(ctx context.Context, t *task.Host) error {
	kept, ok := b.kept[t.Name]
	if !ok || b.Cluster.Etcd.Type != manifest.EtcdInternal {
		return nil
	}
	was, err := etcdRelease(ctx, t, kept.Path(kube.ManifestsDir+"/etcd.yaml"))
	if err != nil {
		return err
	}
	is, err := etcdRelease(ctx, t, memberManifest()[0])
	if err != nil || majorMinor(is) == majorMinor(was) {
		return err
	}
	m, err := b.member(ctx, t)
	if err != nil {
		return plain.Advise(fmt.Errorf("version of etcd's data on %s: %w", t.Name, err),
			"etcd "+was+" may not read the data of "+is+", so the rollback needs an answer: start etcd of "+t.Name+" and run the same command again, or continue the upgrade")
	}
	if versionLess(was, m.Storage+".0") && majorMinor(m.Storage+".0") != majorMinor(was) {
		return b.refuse("continue the upgrade; the only other way is etcd's copy in the work directory (kkbundle etcd restore), which loses all changes since",
			"the data of etcd on %s have moved on to %s, which etcd %s cannot read", t.Name, m.Storage, was)
	}
	return nil
}

// etcdRelease returns the release of etcd in a manifest of kubeadm: 3.6.5 of the image's tag 3.6.5-0.
func etcdRelease(ctx context.Context, t *task.Host, file string) (string, error) {
	text, err := t.Read(ctx, file)
	if err != nil {
		return "", err
	}
	image, _, _ := strings.Cut(imageOf(string(text)), "@")
	release, _, _ := strings.Cut(image[strings.LastIndexByte(image, ':')+1:], "-")
	if _, err := semver.NewVersion(release); err == nil {
		return strings.TrimPrefix(release, "v"), nil
	}
	return "", fmt.Errorf("%s on %s names no release of etcd's image", file, t.Name)
}
