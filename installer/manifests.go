package installer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/charts"
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

// An object is one of Kubernetes' in YAML that somebody wrote.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		Namespace    string `json:"namespace"`
		GenerateName string `json:"generateName"`
	} `json:"metadata"`
	raw map[string]any
}

// String is how people name it: "Deployment.apps/v1 shop/web".
func (o object) String() string {
	return o.Kind + "." + o.APIVersion + " " + strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
}

// maxObjects bounds what one addon may have.
const maxObjects = 5000

// objectsOf reads YAML and puts it into the order that it is applied in: what others live in first, what stands between the API
// server and others last, and else as it was written.
func objectsOf(data []byte) ([]object, error) {
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var list []object
	for i := 1; ; i++ {
		doc, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var raw map[string]any
		if err == nil {
			err = yaml.Unmarshal(doc, &raw)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if list, err = withObject(list, raw); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
	}
	slices.SortStableFunc(list, func(a, b object) int { return cmp.Compare(a.stage(), b.stage()) })
	return list, nil
}

// withObject adds an object, or those of a List. A document of comments has none.
func withObject(list []object, raw map[string]any) ([]object, error) {
	if len(raw) == 0 {
		return list, nil
	}
	if items, ok := raw["items"].([]any); ok && raw["kind"] == "List" {
		for _, item := range items {
			one, _ := item.(map[string]any)
			var err error
			if list, err = withObject(list, one); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	var o object
	text, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	o.raw = raw
	switch {
	case err != nil:
		return nil, err
	case o.Kind == "" || o.APIVersion == "":
		return nil, errors.New("this is no Kubernetes object: apiVersion and kind are missing")
	case o.Metadata.Name == "":
		return nil, fmt.Errorf("a %s has no metadata.name; what only has generateName would be made anew by every run", o.Kind)
	case len(list) == maxObjects:
		return nil, fmt.Errorf("there are more than %d objects", maxObjects)
	}
	return append(list, o), nil
}

// The stages that objects are applied in.
const (
	stageFirst = iota
	stageBetween
	stageLast
)

func (o object) stage() int {
	switch o.Kind {
	case "Namespace", "CustomResourceDefinition":
		return stageFirst
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService":
		return stageLast
	}
	return stageBetween
}

// manifestsOf reads an addon's files.
func (r *Site) manifestsOf(a manifest.Addon) (applied, error) {
	var all bytes.Buffer
	for _, path := range a.Manifests {
		data, err := r.Values(path)
		if err == nil {
			_, err = objectsOf(data)
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
	objects, err := objectsOf(a.data)
	if err != nil {
		return false, err
	}
	for _, group := range byNamespace(objects, a.namespace) {
		data, err := group.yaml()
		if err != nil {
			return false, err
		}
		there, err := succeeded(second(t.kubectlWith(withoutOutput(ctx), bytes.NewReader(data), group.args("get", "--output=name")...)))
		if err != nil || !there {
			return false, err
		}
	}
	return true, nil
}

func second[T any](_ T, err error) error { return err }

// record returns what was applied last under the name, nothing if nothing was.
func (t *Target) record(ctx context.Context, a applied) (map[string]string, error) {
	var list struct {
		Items []struct {
			Data map[string]string `json:"data"`
		} `json:"items"`
	}
	err := t.kubectlJSON(ctx, &list, "get", "configmaps", "--namespace="+a.namespace, "--selector="+recordLabel+"="+a.name)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return list.Items[0].Data, nil
}

// A group is objects that are applied together: those that name their namespace, or those that do not.
type group struct {
	objects   []object
	namespace string // for those that name none
}

// byNamespace parts objects: kubectl, told of a namespace, refuses what names another one.
func byNamespace(objects []object, namespace string) []group {
	own, others := group{namespace: namespace}, group{}
	for _, o := range objects {
		if o.Metadata.Namespace == "" {
			own.objects = append(own.objects, o)
		} else {
			others.objects = append(others.objects, o)
		}
	}
	return slices.DeleteFunc([]group{own, others}, func(g group) bool { return len(g.objects) == 0 })
}

func (g group) args(args ...string) []string {
	if g.namespace != "" {
		args = append(args, "--namespace="+g.namespace)
	}
	return append(args, "--filename=-")
}

func (g group) yaml() ([]byte, error) {
	list := make([]document, 0, len(g.objects))
	for _, o := range g.objects {
		list = append(list, o.raw)
	}
	return documents(list...)
}

// serverSideApply applies objects in the order that they have. Fields that others had set are ours then.
func (t *Target) serverSideApply(ctx context.Context, data []byte, args ...string) error {
	all := append([]string{"apply", "--server-side", "--force-conflicts", "--field-manager=" + fieldManager, "--filename=-"}, args...)
	_, err := t.kubectlWith(ctx, bytes.NewReader(data), all...)
	return err
}

// apply brings YAML into force, stage by stage, and waits for its pods.
func (t *Target) apply(ctx context.Context, task string, a applied) error {
	objects, err := objectsOf(a.data)
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
	for stage := range stageLast + 1 {
		if err := t.applyStage(ctx, objects, stage, a.namespace); err != nil {
			return err
		}
	}
	if err := t.rollOut(ctx, objects, a); err != nil {
		return err
	}
	t.tellLeft(task, a, objects, before)
	return t.writeRecord(ctx, a, objects)
}

func (t *Target) makeNamespace(ctx context.Context, name string) error {
	if slices.Contains([]string{"default", systemNamespace}, name) {
		return nil
	}
	data, err := documents(document{"apiVersion": "v1", "kind": "Namespace", "metadata": document{"name": name}})
	if err != nil {
		return err
	}
	return t.serverSideApply(ctx, data)
}

func (t *Target) applyStage(ctx context.Context, objects []object, stage int, namespace string) error {
	now := slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return o.stage() != stage })
	for _, g := range byNamespace(now, namespace) {
		data, err := g.yaml()
		if err != nil {
			return err
		}
		var args []string
		if g.namespace != "" {
			args = append(args, "--namespace="+g.namespace)
		}
		if err := t.serverSideApply(ctx, data, args...); err != nil {
			return err
		}
	}
	for _, o := range now {
		if o.Kind != "CustomResourceDefinition" {
			continue
		}
		if _, err := t.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition/"+o.Metadata.Name); err != nil {
			return err
		}
	}
	return nil
}

// rollOut waits until the pods of the objects are ready. What keeps them is in the error.
func (t *Target) rollOut(ctx context.Context, objects []object, a applied) error {
	if a.wait == 0 {
		return nil
	}
	end := time.Now().Add(a.wait)
	for _, o := range objects {
		left := "--timeout=" + max(time.Until(end), time.Second).Round(time.Second).String()
		at := []string{"--namespace=" + cmp.Or(o.Metadata.Namespace, a.namespace), left}
		var args []string
		switch o.Kind {
		case "Deployment", "StatefulSet", "DaemonSet":
			args = append([]string{"rollout", "status", strings.ToLower(o.Kind) + "/" + o.Metadata.Name}, at...)
		case "Job":
			args = append([]string{"wait", "--for=condition=complete", "job/" + o.Metadata.Name}, at...)
		default:
			continue
		}
		if _, err := t.kubectl(patient(ctx, a.wait), args...); err != nil {
			return t.withPods(ctx, a, fmt.Errorf("%s: %w", o, err))
		}
	}
	return nil
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
func (t *Target) tellLeft(task string, a applied, objects []object, before map[string]string) {
	now := map[string]bool{}
	for _, o := range objects {
		now[o.String()] = true
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

func (t *Target) writeRecord(ctx context.Context, a applied, objects []object) error {
	var list strings.Builder
	for _, o := range objects {
		list.WriteString(o.String() + "\n")
	}
	data, err := documents(document{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": document{"name": a.recordName(), "namespace": a.namespace, "labels": document{recordLabel: a.name}},
		"data":     document{"digest": shortSum(a.data), "objects": list.String()},
	})
	if err != nil {
		return err
	}
	return t.serverSideApply(ctx, data)
}
