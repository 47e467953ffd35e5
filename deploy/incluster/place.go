package incluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kkbundle/kkbundle/installer/kube"
)

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// place creates or changes the objects: programs first, so that no pod waits for a missing volume.
func (w *work) place(ctx context.Context, p *plan) error {
	if err := w.upload(ctx, p); err != nil {
		return err
	}
	var objects []runtime.Object
	if p.storage.node == "" {
		objects = append(objects, p.claim())
	}
	objects = append(objects, p.authority(), p.deployment())
	for _, d := range p.proxies() {
		objects = append(objects, d)
	}
	for _, o := range objects {
		if err := w.apply(ctx, o); err != nil {
			return err
		}
	}
	return w.dropArchitectures(ctx, p)
}

// upload creates the missing ConfigMaps. They are immutable, and their name has their program's digest: an existing
// one is right.
func (w *work) upload(ctx context.Context, p *plan) error {
	have, err := w.metadata.Resource(configMaps()).Namespace(w.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: componentLabel + "=" + programs})
	if err != nil {
		return err
	}
	exists := map[string]bool{}
	for _, m := range have.Items {
		exists[m.Name] = true
	}
	for _, m := range p.configMaps() {
		if exists[m.Name] {
			continue
		}
		if _, err := w.typed.CoreV1().ConfigMaps(w.Namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("program's part %s: %w", m.Name, err)
		}
		w.changed++
		w.Logger.Info("program's part created", "configmap", m.Name)
	}
	return nil
}

// dropArchitectures deletes the proxies of architectures that the cluster has no node of any more.
func (w *work) dropArchitectures(ctx context.Context, p *plan) error {
	have, err := w.typed.AppsV1().DaemonSets(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" +
		manager})
	if err != nil {
		return err
	}
	var needed []string
	for _, d := range p.proxies() {
		needed = append(needed, d.Name)
	}
	for i := range have.Items {
		if slices.Contains(needed, have.Items[i].Name) {
			continue
		}
		if err := w.typed.AppsV1().DaemonSets(w.Namespace).Delete(ctx, have.Items[i].Name,
			metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		w.changed++
	}
	return nil
}

// apply makes an object as given, by server-side apply.
func (w *work) apply(ctx context.Context, o runtime.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	delete(content, "status")
	prune(content)
	what := kube.Describe(u)
	gvk := u.GroupVersionKind()
	api := w.dynamic.Resource(gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind) +
		"s")).Namespace(u.GetNamespace())
	before := ""
	have, err := api.Get(ctx, u.GetName(), metav1.GetOptions{})
	switch {
	case err == nil:
		before = have.GetResourceVersion()
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w", what, err)
	}
	after, err := api.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if after.GetResourceVersion() != before {
		w.changed++
		w.Logger.Info("object changed", "object", what)
	}
	return nil
}

// prune removes nulls, which are zero times: they are not fields that we want to own.
func prune(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, k)
		case map[string]any:
			prune(v)
		}
	}
}

// poll asks every second until what is missing is nothing, at most for Wait.
func (w *work) poll(ctx context.Context, missing func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, w.Wait)
	defer cancel()
	last := ""
	for {
		now, err := missing(ctx)
		if ctx.Err() == nil && err != nil {
			return err
		}
		if err == nil && now == "" {
			return nil
		}
		if err == nil {
			last = now
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", last, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// wait waits for the registry and for the proxies of all ready nodes that have their image.
func (w *work) wait(ctx context.Context, p *plan) error {
	return w.poll(ctx, func(ctx context.Context) (string, error) {
		d, err := w.typed.AppsV1().Deployments(w.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas == 0 || s.ReadyReplicas == 0 ||
			s.Replicas > s.UpdatedReplicas {
			return w.explain(ctx, "registry", "the registry is not ready")
		}
		for _, b := range p.images {
			component := "proxy-" + b.arch
			set, err := w.typed.AppsV1().DaemonSets(w.Namespace).Get(ctx, name+"-"+component, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			s, need := set.Status, int32(len(b.nodes))
			if s.ObservedGeneration < set.Generation || s.NumberReady < need || s.UpdatedNumberScheduled < need {
				return w.explain(ctx, component, fmt.Sprintf("%d of %d nodes can pull", s.NumberReady, need))
			}
		}
		return "", nil
	})
}

// explain adds the reasons of pods to a text. Reasons are best effort.
func (w *work) explain(ctx context.Context, component, text string) (string, error) {
	const most = 3
	pods, err := w.typed.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: componentLabel + "=" +
		component})
	if err != nil {
		return text, nil
	}
	n := 0
	for i := range pods.Items {
		pod := &pods.Items[i]
		if n == most || kube.IsPodReady(pod) {
			continue
		}
		n++
		text += fmt.Sprintf("; pod %s on %s: %s", pod.Name, pod.Spec.NodeName, reason(pod))
	}
	return text, nil
}

// reason is why a pod is not ready, with the last lines of a container that ended.
func reason(pod *corev1.Pod) string {
	text := kube.NotReadyReason(pod)
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.LastTerminationState.Terminated; t != nil && t.Message != "" {
			text += ": " + strings.TrimSpace(t.Message)
		}
	}
	return text
}
