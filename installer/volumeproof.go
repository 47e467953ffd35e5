package installer

import (
	"context"
	_ "embed" // scripts
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
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
	var s survey
	var list struct {
		Items []clusterObject `json:"items"`
	}
	err := t.kubectlJSON(ctx, &list, "get", "storageclasses")
	s.classes = list.Items
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
		objects, err := documents(volumeObjects(name, class, image, at)...)
		if err != nil {
			return err
		}
		if err := t.kubectlApply(ctx, objects); err != nil {
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

// throughPod runs a command on the pod's node.
func (t *Target) throughPod(ctx context.Context, name string, args ...string) error {
	pods, err := t.pods(ctx, "--namespace="+volumeNamespace, "--field-selector=metadata.name="+name)
	if err != nil {
		return err
	}
	if len(pods) != 1 || !isTrue(pods[0].Status.Conditions, "Ready") {
		reason := "it is not there"
		if len(pods) == 1 {
			reason = pods[0].reason()
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

func volumeObjects(name, class, image, at string) []document {
	return []document{
		{
			"apiVersion": "v1", "kind": "Namespace",
			"metadata": document{"name": volumeNamespace, "labels": document{"pod-security.kubernetes.io/enforce": "baseline"}},
		},
		{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim",
			"metadata": document{"name": "proof", "namespace": volumeNamespace},
			"spec": document{
				"accessModes": []any{"ReadWriteOnce"}, "storageClassName": class,
				"resources": document{"requests": document{"storage": "16Mi"}},
			},
		},
		{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": document{"name": name, "namespace": volumeNamespace},
			"spec": document{
				"terminationGracePeriodSeconds": 0,
				"automountServiceAccountToken":  false,
				"enableServiceLinks":            false,
				"tolerations":                   []any{document{"operator": "Exists"}},
				"containers": []any{document{
					"name": "holder", "image": image,
					"securityContext": document{"allowPrivilegeEscalation": false, "capabilities": document{"drop": []any{"ALL"}}},
					"volumeMounts":    []any{document{"name": "proof", "mountPath": at}},
				}},
				"volumes": []any{document{"name": "proof", "persistentVolumeClaim": document{"claimName": "proof"}}},
			},
		},
	}
}
