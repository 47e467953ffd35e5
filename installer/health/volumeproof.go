package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const volumeWait = 3 * time.Minute // a provisioner's pod may have to pull its image first

// VolumesTask proves that a volume of the default storage class is bound, and that a second pod reads the data of the
// first. The pods only hold the volume, because no image that every cluster has can write: the helper on the host
// writes through the pod's own view of the volume. The proof runs once for a class.
func VolumesTask() task.Task {
	return task.Task{
		Name:  "verify-volumes",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			class, err := defaultClass(ctx, t)
			if err != nil {
				return false, err
			}
			if class == "" {
				return false, errNothing
			}
			return t.HasFiles(ctx, marks.VolumeProof.File([]byte(class+"\n")))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			class, err := defaultClass(ctx, t)
			if err != nil {
				return err
			}
			if err := deleteVolumes(ctx, t); err != nil {
				return err
			}
			err = proveVolume(ctx, t, class)
			if err := errors.Join(err, deleteVolumes(context.WithoutCancel(ctx), t)); err != nil {
				return fmt.Errorf("storage class %s: %w", class, err)
			}
			return t.Write(ctx, marks.VolumeProof.File([]byte(class+"\n")))
		},
	}
}

func deleteVolumes(ctx context.Context, t *task.Host) error {
	_, err := t.Kubectl(ctx, "delete", "namespace", marks.VolumesNamespace, "--ignore-not-found", "--timeout=2m")
	return err
}

// defaultClass returns the name of the default storage class, "" if there is none.
func defaultClass(ctx context.Context, t *task.Host) (string, error) {
	if member, err := member.IsMember(ctx, t); err != nil || !member {
		return "", err // a dry run before the cluster exists
	}
	classes, err := t.Kube().StorageClasses(ctx)
	s := Survey{Classes: classes}
	return strings.Join(s.defaults()[:min(1, len(s.defaults()))], ""), err
}

func proveVolume(ctx context.Context, t *task.Host, class string) error {
	image, err := catalog.ImageRef(t.Site.Cluster, "pause")
	if err != nil {
		return err
	}
	mark := task.RandomHex(8)
	at := "/kkbundle-" + mark
	for i, verb := range []string{"write", "read"} {
		name := fmt.Sprintf("volume-%d", i)
		if err := t.ApplyObjects(ctx, volumeObjects(name, class, image, at)...); err != nil {
			return err
		}
		if err := task.Eventually(ctx, volumeWait, func(ctx context.Context) error {
			return runOnNode(ctx, t, name,
				func(uid string) []string { return []string{host.HelperPath, "volume", verb, uid, at, mark} })
		}); err != nil {
			return err
		}
		if _, err := t.Kubectl(ctx, "delete", "pod", name, "--namespace="+marks.VolumesNamespace,
			"--timeout=1m"); err != nil {
			return err
		}
	}
	return nil
}

// runOnNode runs a command for a pod's UID on the node of the pod.
func runOnNode(ctx context.Context, t *task.Host, name string, command func(uid string) []string) error {
	pods, err := t.Kube().Pods(ctx, "--namespace="+marks.VolumesNamespace, "--field-selector=metadata.name="+name)
	if err != nil {
		return err
	}
	if len(pods) != 1 || !kube.IsPodReady(&pods[0]) {
		reason := "it does not exist"
		if len(pods) == 1 {
			reason = kube.NotReadyReason(&pods[0])
		}
		return fmt.Errorf("the pod with the volume is not ready: %s", reason)
	}
	for _, node := range t.Site.Connected(manifest.RoleCluster) {
		if node.Name != pods[0].Spec.NodeName {
			continue
		}
		return node.Run(ctx, command(string(pods[0].UID))...)
	}
	return nil // the run is not connected to the node: a bound and mounted volume is the only proof
}

func volumeObjects(name, class, image, at string) []runtime.Object {
	return []runtime.Object{
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{
				Name:   marks.VolumesNamespace,
				Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "proof", Namespace: marks.VolumesNamespace},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
			},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: marks.VolumesNamespace},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(0)),
				AutomountServiceAccountToken:  new(false),
				EnableServiceLinks:            new(false),
				Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{
					Name: "holder", Image: image,
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: new(false),
						Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
					VolumeMounts: []corev1.VolumeMount{{Name: "proof", MountPath: at}},
				}},
				Volumes: []corev1.Volume{{Name: "proof", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "proof"},
				}}},
			},
		},
	}
}
