package installer

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
	"github.com/kkbundle/kkbundle/manifest"
)

// applied is Kubernetes YAML that is in force in the cluster under a name.
type applied struct {
	name string
	// namespace is made if it is missing. Objects that name none are put there.
	namespace string
	data      []byte
	// wait is how long its pods may take to be ready; 0 means not to wait for that.
	wait time.Duration
}

// recordLabel marks the ConfigMap, beside what was applied, that says from which YAML and which objects there were. Its value is
// the name of the addon.
const recordLabel = "kkbundle.io/manifests"

// fieldManager owns the fields that an installation sets.
const fieldManager = "kkbundle"

func (a applied) recordName() string { return "kkbundle.manifests." + a.name }

// shortSum is enough of a digest to tell contents apart.
func shortSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:40]
}

// manifestsOf reads an addon's files.
func (r *Site) manifestsOf(a manifest.Addon) (applied, error) {
	var all bytes.Buffer
	for _, path := range a.Manifests {
		data, err := r.Values(path)
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

// manifestsTask keeps YAML in force: it is there in full, and was applied as it is now. What was in it before and is not any more
// is named, not deleted.
func manifestsTask(name string, want func(ctx context.Context, t *Target) (applied, error)) Task {
	return Task{
		Name:  name,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err
			}
			a, err := want(ctx, t)
			if err != nil {
				return false, err
			}
			return t.isApplied(ctx, a)
		},
		Do: func(ctx context.Context, t *Target) error {
			a, err := want(ctx, t)
			if err != nil {
				return err
			}
			return t.apply(ctx, name, a)
		},
	}
}

// isApplied tells whether the record is of this YAML, and every object there.
func (t *Target) isApplied(ctx context.Context, a applied) (bool, error) {
	record, err := t.record(ctx, a)
	if err != nil || record["digest"] != shortSum(a.data) {
		return false, err
	}
	objects, err := kube.ParseManifest(a.data)
	if err != nil {
		return false, err
	}
	return succeeded(t.kube().CheckManifest(ctx, objects, a.namespace))
}

// record returns what was applied last under the name, nothing if nothing was.
func (t *Target) record(ctx context.Context, a applied) (map[string]string, error) {
	var list corev1.ConfigMapList
	err := t.kube().Get(ctx, &list, "configmaps", "--namespace="+a.namespace, "--selector="+recordLabel+"="+a.name)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return list.Items[0].Data, nil
}

// applyObjects applies objects that may be secret, on kubectl's side.
func (t *Target) applyObjects(ctx context.Context, objects ...runtime.Object) error {
	data, err := kube.YAML(objects...)
	if err != nil {
		return err
	}
	return t.kube().Apply(ctx, data, kube.Apply{})
}

// serverSideApply applies an object. Fields that others had set are ours then.
func (t *Target) serverSideApply(ctx context.Context, object runtime.Object) error {
	data, err := kube.YAML(object)
	if err != nil {
		return err
	}
	return t.kube().Apply(ctx, data, kube.Apply{Manager: fieldManager, Force: true})
}

// apply brings YAML into force, stage by stage, and waits for its pods.
func (t *Target) apply(ctx context.Context, task string, a applied) error {
	objects, err := kube.ParseManifest(a.data)
	if err != nil {
		return err
	}
	before, err := t.record(ctx, a)
	if err != nil {
		return err
	}
	if err := t.makeNamespace(ctx, a.namespace); err != nil {
		return err
	}
	if err := t.kube().ApplyManifest(ctx, objects, kube.Apply{Manager: fieldManager, Force: true, Namespace: a.namespace}); err != nil {
		return err
	}
	if a.wait > 0 {
		if err := t.kube().RollOut(ctx, objects, a.namespace, a.wait); err != nil {
			return t.withPods(ctx, a, err)
		}
	}
	t.tellLeft(task, a, objects, before)
	return t.writeRecord(ctx, a, objects)
}

func (t *Target) makeNamespace(ctx context.Context, name string) error {
	if slices.Contains([]string{"default", systemNamespace}, name) {
		return nil
	}
	return t.serverSideApply(ctx, namespaceObject(name))
}

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// withPods adds to an error what the pods say that are not ready.
func (t *Target) withPods(ctx context.Context, a applied, err error) error {
	kubeconfig, unread := t.run.dir.read(adminConfFile)
	if unread != nil || ctx.Err() != nil {
		return err
	}
	o := charts.InstallOptions{Kubeconfig: kubeconfig, Dial: t.dial, Namespace: a.namespace, Logger: t.run.Logger}
	for _, pod := range charts.NotReady(ctx, o, string(a.data)) {
		err = fmt.Errorf("%w\n%s", err, t.run.mask.mask(pod))
	}
	return err
}

// tellLeft names what was applied before and is not in the YAML any more.
func (t *Target) tellLeft(task string, a applied, objects kube.Manifest, before map[string]string) {
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
	t.run.tell(Event{
		Phase: "install", Task: task, Host: t.Name, State: Warned,
		Message: fmt.Sprintf("%s is not in the manifests of %s any more and stays in the cluster; delete it with kubectl if nobody needs it", strings.Join(left, ", "), a.name),
	})
}

func (t *Target) writeRecord(ctx context.Context, a applied, objects kube.Manifest) error {
	var list strings.Builder
	for _, o := range objects {
		list.WriteString(kube.Describe(o) + "\n")
	}
	return t.serverSideApply(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: a.recordName(), Namespace: a.namespace, Labels: map[string]string{recordLabel: a.name}},
		Data:       map[string]string{"digest": shortSum(a.data), "objects": list.String()},
	})
}
