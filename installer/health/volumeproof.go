package installer

import (
	"context"
	_ "embed" // scripts
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
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	volumeProofPath = stampDir + "/volume-proof"
	volumeNamespace = "kkbundle-verify-volumes"
	volumeWait      = 3 * time.Minute // a provisioner's pod may have to pull its image first
)

// volumesTask proves that a volume of the default storage class is bound, and that what one pod writes the next one reads. The
// pods only hold the volume, because no image that every cluster has could write: the host writes through the pod's own
// view of it. It is done once for a class.
func volumesTask() Task {
	return Task{
		Name:  "verify-volumes",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			class, err := t.defaultClass(ctx)
			if err != nil {
				return false, err
			}
			if class == "" {
				return false, errNothing
			}
			return t.has(ctx, textFile{volumeProofPath, 0o600, []byte(class + "\n")})
		},
		Do: func(ctx context.Context, t *Target) error {
			class, err := t.defaultClass(ctx)
			if err != nil {
				return err
			}
			if err := t.forgetVolumes(ctx); err != nil {
				return err
			}
			err = t.proveVolume(ctx, class)
			if err := errors.Join(err, t.forgetVolumes(context.WithoutCancel(ctx))); err != nil {
				return fmt.Errorf("storage class %s: %w", class, err)
			}
			return t.write(ctx, textFile{volumeProofPath, 0o600, []byte(class + "\n")})
		},
	}
}

func (t *Target) forgetVolumes(ctx context.Context) error {
	_, err := t.kubectl(ctx, "delete", "namespace", volumeNamespace, "--ignore-not-found", "--timeout=2m")
	return err
}

// defaultClass is the name of the default storage class, "" if there is none.
func (t *Target) defaultClass(ctx context.Context) (string, error) {
	if member, err := t.isMember(ctx); err != nil || !member {
		return "", err // a dry run, before there is a cluster
	}
	classes, err := t.kube().StorageClasses(ctx)
	s := survey{classes: classes}
	return strings.Join(s.defaults()[:min(1, len(s.defaults()))], ""), err
}

//go:embed scripts/volume-proof.sh
var volumeProofScript string

func (t *Target) proveVolume(ctx context.Context, class string) error {
	image, err := catalog.ImageRef(t.run.cluster, "pause")
	if err != nil {
		return err
	}
	mark := randomHex(8)
	at := "/kkbundle-" + mark // names the pod's processes, whatever the runtime
	for i, verb := range []string{"write", "read"} {
		name := fmt.Sprintf("volume-%d", i)
		if err := t.applyObjects(ctx, volumeObjects(name, class, image, at)...); err != nil {
			return err
		}
		if err := eventually(ctx, volumeWait, func(ctx context.Context) error {
			return t.throughPod(ctx, name, host.Script("volume-proof.sh", volumeProofScript, at, mark, verb)...)
		}); err != nil {
			return err
		}
		if _, err := t.kubectl(ctx, "delete", "pod", name, "--namespace="+volumeNamespace, "--timeout=1m"); err != nil {
			return err
		}
	}
	return nil
}

// throughPod runs a command on the node of a pod.
func (t *Target) throughPod(ctx context.Context, name string, args ...string) error {
	pods, err := t.kube().Pods(ctx, "--namespace="+volumeNamespace, "--field-selector=metadata.name="+name)
	if err != nil {
		return err
	}
	if len(pods) != 1 || !kube.IsPodReady(&pods[0]) {
		reason := "it is not there"
		if len(pods) == 1 {
			reason = kube.NotReadyReason(&pods[0])
		}
		return fmt.Errorf("the pod with the volume is not ready: %s", reason)
	}
	for _, node := range t.run.connected(manifest.RoleCluster) {
		if node.Name != pods[0].Spec.NodeName {
			continue
		}
		return node.command(ctx, args...)
	}
	return nil // on a node that this run is not connected to: bound and mounted is what can be seen
}

func volumeObjects(name, class, image, at string) []runtime.Object {
	return []runtime.Object{
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: volumeNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "proof", Namespace: volumeNamespace},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
			},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: volumeNamespace},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(0)),
				AutomountServiceAccountToken:  new(false),
				EnableServiceLinks:            new(false),
				Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{
					Name: "holder", Image: image,
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
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
