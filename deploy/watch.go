package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchEvery is the time between two messages about pods that are awaited.
const watchEvery = 10 * time.Second

// watch says now and then how many pods of a part's namespace are ready, until stop.
func (r *run) watch(ctx context.Context, p *preview) (stop func()) {
	if r.Progress == nil || p.step.wait() == 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(watchEvery):
			}
			if text := r.readiness(ctx, p.step.Namespace); text != "" {
				r.say(p.step.name(), text)
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// readiness describes the pods of a namespace. Errors are ignored: it only informs.
func (r *run) readiness(ctx context.Context, namespace string) string {
	const most = 500
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	pods, err := r.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: most})
	if err != nil || len(pods.Items) == 0 {
		return ""
	}
	ready, all := 0, 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		all++
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	return fmt.Sprintf("waiting: %d of %d pods in %s are ready", ready, all, namespace)
}

// warnStrays warns of pods that have an upstream name of the bundle's images: somebody else made them. Errors are
// ignored: it only informs.
func (r *run) warnStrays(ctx context.Context) {
	const most = 500
	set := map[string]bool{}
	for _, p := range r.previews {
		for _, name := range p.redirected() {
			set[name] = true
		}
	}
	for _, namespace := range sorted(set) {
		pods, err := r.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: most})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			for _, c := range slices.Concat(pods.Items[i].Spec.InitContainers, pods.Items[i].Spec.Containers) {
				if _, ok := r.images.destination(c.Image); ok && !strings.HasPrefix(c.Image, r.images.pull) &&
					!r.images.excluded(c.Image) {
					r.warn("", fmt.Sprintf("pod %s/%s has image %s, which nodes pull from upstream", namespace,
						pods.Items[i].Name, c.Image))
				}
			}
		}
	}
}
