package addon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// applied is a named set of Kubernetes YAML to apply.
type applied struct {
	name string
	// namespace is created if missing, and is the default for objects without one.
	namespace string
	data      []byte
	// wait limits the wait for ready pods; 0 does not wait.
	wait time.Duration
}

func (a applied) recordName() string { return "kkbundle.manifests." + a.name }

// shortDigest returns the first 40 digits of a SHA-256.
func shortDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:40]
}

// ManifestsOf reads an addon's manifests.
func ManifestsOf(s *task.Site, a manifest.Addon) (applied, error) {
	var all bytes.Buffer
	for _, path := range a.Manifests {
		data, err := s.Values(path)
		if err == nil {
			_, err = kube.ParseManifest(data)
		}
		if err != nil {
			return applied{}, fmt.Errorf("addon %s: %s: %w", a.Release, path, err)
		}
		fmt.Fprintf(&all, "---\n%s\n", bytes.TrimSpace(data))
	}
	one := applied{name: a.Release, namespace: a.Namespace, data: all.Bytes()}
	if a.Wait == manifest.WaitReady {
		one.wait = time.Duration(a.Timeout)
	}
	return one, nil
}

// manifestsTask applies YAML unless it was applied unchanged and all its objects exist. Objects that are no longer in
// it are reported, not deleted.
func manifestsTask(name string, want func(ctx context.Context, t *task.Host) (applied, error)) task.Task {
	return task.Task{
		Name:  name,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			a, err := want(ctx, t)
			if err != nil {
				return false, err
			}
			return IsApplied(ctx, t, a)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			a, err := want(ctx, t)
			if err != nil {
				return err
			}
			return Apply(ctx, t, name, a)
		},
	}
}

// IsApplied reports whether the record matches this YAML and all its objects exist.
func IsApplied(ctx context.Context, t *task.Host, a applied) (bool, error) {
	record, err := record(ctx, t, a)
	if err != nil || record["digest"] != shortDigest(a.data) {
		return false, err
	}
	objects, err := kube.ParseManifest(a.data)
	if err != nil {
		return false, err
	}
	return task.Succeeded(t.Kube().CheckManifest(ctx, objects, a.namespace))
}

// record returns the record of the last run, or nil.
func record(ctx context.Context, t *task.Host, a applied) (map[string]string, error) {
	var list corev1.ConfigMapList
	err := t.Kube().Get(ctx, &list, "configmaps", "--namespace="+a.namespace, "--selector="+marks.ManifestsLabel+"="+
		a.name)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return list.Items[0].Data, nil
}

// serverSideApply applies an object and takes over fields of other managers.
func serverSideApply(ctx context.Context, t *task.Host, object runtime.Object) error {
	data, err := kube.YAML(object)
	if err != nil {
		return err
	}
	return t.Kube().Apply(ctx, data, kube.Apply{Manager: task.FieldManager, Force: true})
}

// Apply applies YAML stage by stage and waits for its pods.
func Apply(ctx context.Context, t *task.Host, step string, a applied) error {
	objects, err := kube.ParseManifest(a.data)
	if err != nil {
		return err
	}
	before, err := record(ctx, t, a)
	if err != nil {
		return err
	}
	if err := makeNamespace(ctx, t, a.namespace); err != nil {
		return err
	}
	if err := t.Kube().ApplyManifest(ctx, objects, kube.Apply{
		Manager: task.FieldManager, Force: true,
		Namespace: a.namespace,
	}); err != nil {
		return err
	}
	if a.wait > 0 {
		if err := t.Kube().RollOut(ctx, objects, a.namespace, a.wait); err != nil {
			return withPodErrors(ctx, t, a, err)
		}
	}
	warnOrphans(t, step, a, objects, before)
	return writeRecord(ctx, t, a, objects)
}

func makeNamespace(ctx context.Context, t *task.Host, name string) error {
	if slices.Contains([]string{"default", kube.SystemNamespace}, name) {
		return nil
	}
	return serverSideApply(ctx, t, kube.NamespaceObject(name))
}

// withPodErrors appends the messages of pods that are not ready to an error.
func withPodErrors(ctx context.Context, t *task.Host, a applied, err error) error {
	kubeconfig, unread := t.Site.Dir.Read(task.AdminConfFile)
	if unread != nil || ctx.Err() != nil {
		return err
	}
	o := charts.InstallOptions{Kubeconfig: kubeconfig, Dial: t.Dial, Namespace: a.namespace, Logger: t.Site.Logger}
	for _, pod := range charts.NotReady(ctx, o, string(a.data)) {
		err = fmt.Errorf("%w\n%s", err, t.Site.Mask.Mask(pod))
	}
	return err
}

// warnOrphans reports objects of the last run that are no longer in the YAML.
func warnOrphans(t *task.Host, step string, a applied, objects kube.Manifest, before map[string]string) {
	now := map[string]bool{}
	for _, o := range objects {
		now[kube.Describe(o)] = true
	}
	var left []string
	for line := range strings.Lines(before["objects"]) {
		if line = strings.TrimSpace(line); line != "" && !now[line] {
			left = append(left, line)
		}
	}
	if len(left) == 0 {
		return
	}
	t.Site.Tell(task.Event{
		Phase: "install", Task: step, Host: t.Name, State: task.Warned,
		Message: fmt.Sprintf("%s is not in the manifests of %s any more and stays in the cluster; delete it with kubectl if nobody needs it", strings.Join(left, ", "), a.name),
	})
}

func writeRecord(ctx context.Context, t *task.Host, a applied, objects kube.Manifest) error {
	var list strings.Builder
	for _, o := range objects {
		list.WriteString(kube.Describe(o) + "\n")
	}
	return serverSideApply(ctx, t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: a.recordName(), Namespace: a.namespace,
			Labels: map[string]string{marks.ManifestsLabel: a.name},
		},
		Data: map[string]string{"digest": shortDigest(a.data), "objects": list.String()},
	})
}
