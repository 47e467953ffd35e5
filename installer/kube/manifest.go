package kube

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxObjects bounds the objects of one manifest.
const maxObjects = 5000

// A Manifest is the objects of YAML that somebody wrote, in the order that they are applied in.
type Manifest []*unstructured.Unstructured

// ParseManifest reads YAML and sorts its objects: namespaces and definitions first, what stands between the API server and others
// last, and else as they were written.
func ParseManifest(data []byte) (Manifest, error) {
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var list Manifest
	for i := 1; ; i++ {
		doc, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var plain map[string]any
		if err == nil {
			err = yaml.Unmarshal(doc, &plain)
		}
		if err == nil {
			list, err = list.with(plain)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
	}
	slices.SortStableFunc(list, func(a, b *unstructured.Unstructured) int { return cmp.Compare(stageOf(a), stageOf(b)) })
	return list, nil
}

// with adds an object, or those of a List. A document of comments has none.
func (m Manifest) with(plain map[string]any) (Manifest, error) {
	if len(plain) == 0 {
		return m, nil
	}
	if items, ok := plain["items"].([]any); ok && plain["kind"] == "List" {
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
	_, _, wrongName := unstructured.NestedString(plain, "metadata", "name") // the getters take numbers for nothing
	_, _, wrongNamespace := unstructured.NestedString(plain, "metadata", "namespace")
	switch err := cmp.Or(wrongName, wrongNamespace); {
	case err != nil:
		return nil, err
	case o.GetKind() == "" || o.GetAPIVersion() == "":
		return nil, errors.New("this is no Kubernetes object: apiVersion and kind are missing")
	case o.GetName() == "":
		return nil, fmt.Errorf("a %s has no metadata.name; what only has generateName would be made anew by every run", o.GetKind())
	case len(m) == maxObjects:
		return nil, fmt.Errorf("there are more than %d objects", maxObjects)
	}
	return append(m, o), nil
}

// Describe names an object: "Deployment.apps/v1 shop/web".
func Describe(o *unstructured.Unstructured) string {
	return o.GetKind() + "." + o.GetAPIVersion() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}

// The stages that objects are applied in.
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

// A group is objects that one call of kubectl is about: those that name their namespace, or those that do not. kubectl, told of a
// namespace, refuses objects that name another one.
type group struct {
	objects   []runtime.Object
	namespace string // for those that name none
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

// CheckManifest returns the error of kubectl if objects of a manifest are missing. Objects that name no namespace are in namespace.
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

// ApplyManifest applies a manifest, stage by stage. Custom resources are applied when the API server serves their definitions.
func (c Client) ApplyManifest(ctx context.Context, m Manifest, how Apply) error {
	for stage := range stageLast + 1 {
		now := slices.DeleteFunc(slices.Clone(m), func(o *unstructured.Unstructured) bool { return stageOf(o) != stage })
		for _, g := range now.groups(how.Namespace) {
			data, err := YAML(g.objects...)
			if err != nil {
				return err
			}
			if err := c.Apply(ctx, data, Apply{Manager: how.Manager, Force: how.Force, Namespace: g.namespace}); err != nil {
				return err
			}
		}
		for _, o := range now {
			if o.GetKind() != "CustomResourceDefinition" {
				continue
			}
			if err := c.run(ctx, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition/"+o.GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// RollOut waits until the workloads of a manifest are ready and its jobs complete, for wait at most.
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
