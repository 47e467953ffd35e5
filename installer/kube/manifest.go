package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// maxObjects limits the objects of one manifest.
const maxObjects = 5000

// A Manifest is the objects of a YAML file in the order of apply.
type Manifest []*unstructured.Unstructured

// ParseManifest reads YAML and sorts its objects: namespaces and definitions first, webhooks and APIServices last, the
// others between in their written order.
func ParseManifest(data []byte) (Manifest, error) {
	var list Manifest
	i := 0
	for doc := range document.SplitObjects(data) {
		i++
		object, err := decode(doc)
		if err == nil {
			list, err = list.with(object)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
	}
	slices.SortStableFunc(list,
		func(a, b *unstructured.Unstructured) int { return cmp.Compare(stageOf(a), stageOf(b)) })
	return list, nil
}

func decode(doc document.ObjectText) (object map[string]any, err error) {
	switch {
	case doc.Err != nil:
		return nil, fmt.Errorf("line %d: %w", doc.Line, doc.Err)
	case doc.JSON:
		err = json.Unmarshal(doc.Text, &object)
	default:
		err = yaml.Unmarshal(doc.Text, &object)
	}
	return object, err
}

// with adds an object, or the items of a List. A document with comments only adds none.
func (m Manifest) with(plain map[string]any) (Manifest, error) {
	if len(plain) == 0 {
		return m, nil
	}
	if items, ok := plain["items"].([]any); ok && isList(plain["kind"]) {
		for _, item := range items {
			one, _ := item.(map[string]any)
			var err error
			if m, err = m.with(one); err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	o := &unstructured.Unstructured{Object: plain}
	_, _, wrongName := unstructured.NestedString(plain, "metadata", "name") // getters ignore numbers
	_, _, wrongNamespace := unstructured.NestedString(plain, "metadata", "namespace")
	switch err := cmp.Or(wrongName, wrongNamespace); {
	case err != nil:
		return nil, err
	case o.GetKind() == "" || o.GetAPIVersion() == "":
		return nil, errors.New("not a Kubernetes object: apiVersion or kind is missing")
	case o.GetName() == "":
		return nil, fmt.Errorf("%s without metadata.name; with generateName, every run would create another object",
			o.GetKind())
	case len(m) == maxObjects:
		return nil, fmt.Errorf("more than %d objects", maxObjects)
	}
	return append(m, o), nil
}

// isList reports whether a kind is that of a list, such as List or RoleList.
func isList(kind any) bool {
	text, _ := kind.(string)
	return strings.HasSuffix(text, "List")
}

// Describe returns kind, version and name of an object: "Deployment.apps/v1 shop/web".
func Describe(o *unstructured.Unstructured) string {
	return o.GetKind() + "." + o.GetAPIVersion() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}

// The stages of ApplyManifest.
const (
	stageFirst = iota
	stageBetween
	stageLast
)

func stageOf(o *unstructured.Unstructured) int {
	switch o.GetKind() {
	case "Namespace", "CustomResourceDefinition":
		return stageFirst
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService":
		return stageLast
	}
	return stageBetween
}

// A group is the objects of one kubectl call, with or without a namespace of their own. kubectl --namespace refuses
// objects of another namespace.
type group struct {
	objects   []runtime.Object
	namespace string // for objects without one
}

func (m Manifest) groups(namespace string) []group {
	own, others := group{namespace: namespace}, group{}
	for _, o := range m {
		if o.GetNamespace() == "" {
			own.objects = append(own.objects, o)
		} else {
			others.objects = append(others.objects, o)
		}
	}
	return slices.DeleteFunc([]group{own, others}, func(g group) bool { return len(g.objects) == 0 })
}

// CheckManifest returns kubectl's error if objects of a manifest are missing. namespace is for objects without one.
func (c Client) CheckManifest(ctx context.Context, m Manifest, namespace string) error {
	for _, g := range m.groups(namespace) {
		data, err := YAML(g.objects...)
		if err != nil {
			return err
		}
		args := []string{"get", "--output=name"}
		if g.namespace != "" {
			args = append(args, "--namespace="+g.namespace)
		}
		if _, err := c.Kubectl(ctx, Command{Args: append(args, "--filename=-"), Stdin: data, Quiet: true}); err != nil {
			return err
		}
	}
	return nil
}

// ApplyManifest applies a manifest stage by stage and waits for custom resource definitions after each.
func (c Client) ApplyManifest(ctx context.Context, m Manifest, how Apply) error {
	for stage := range stageLast + 1 {
		now := slices.DeleteFunc(slices.Clone(m),
			func(o *unstructured.Unstructured) bool { return stageOf(o) != stage })
		for _, g := range now.groups(how.Namespace) {
			data, err := YAML(g.objects...)
			if err != nil {
				return err
			}
			if err := c.Apply(ctx, data, Apply{
				Manager: how.Manager, Force: how.Force,
				Namespace: g.namespace,
			}); err != nil {
				return err
			}
		}
		for _, o := range now {
			if o.GetKind() != "CustomResourceDefinition" {
				continue
			}
			if err := c.run(ctx, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition/"+
				o.GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// RollOut waits until the workloads of a manifest are ready and its jobs are complete, at most for the duration wait.
func (c Client) RollOut(ctx context.Context, m Manifest, namespace string, wait time.Duration) error {
	end := time.Now().Add(wait)
	for _, o := range m {
		left := "--timeout=" + max(time.Until(end), time.Second).Round(time.Second).String()
		at := []string{"--namespace=" + cmp.Or(o.GetNamespace(), namespace), left}
		var args []string
		switch o.GetKind() {
		case "Deployment", "StatefulSet", "DaemonSet":
			args = append([]string{"rollout", "status", strings.ToLower(o.GetKind()) + "/" + o.GetName()}, at...)
		case "Job":
			args = append([]string{"wait", "--for=condition=complete", "job/" + o.GetName()}, at...)
		default:
			continue
		}
		if _, err := c.Kubectl(ctx, Command{Args: args, Patience: wait}); err != nil {
			return fmt.Errorf("%s: %w", Describe(o), err)
		}
	}
	return nil
}
