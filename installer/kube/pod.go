package kube

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Pods lists pods. args selects the namespace and labels.
func (c Client) Pods(ctx context.Context, args ...string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.Get(ctx, &list, append([]string{"pods"}, args...)...)
	return list.Items, err
}

// IsPodReady reports whether all containers of a pod are ready.
func IsPodReady(p *corev1.Pod) bool { return readiness(p).Status == corev1.ConditionTrue }

// UnreadySince returns when a pod that is not ready stopped being ready, or was created if it never was ready.
func UnreadySince(p *corev1.Pod) time.Time {
	if since := readiness(p).LastTransitionTime; !since.IsZero() {
		return since.Time
	}
	return p.CreationTimestamp.Time
}

func readiness(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{Type: corev1.PodReady, Message: notReported}
}

// hasEnded reports whether a pod has succeeded or failed.
func hasEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// IsPodOver reports whether a pod need not become ready: it has ended, was evicted or is being deleted.
func IsPodOver(p *corev1.Pod) bool { return hasEnded(p) || p.DeletionTimestamp != nil }

// IsLone reports whether a pod runs without a controller and is not a static pod: nothing would recreate it elsewhere.
func IsLone(p *corev1.Pod) bool {
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	return !static && !hasEnded(p) && len(p.OwnerReferences) == 0
}

// Containers returns the status of a pod's init containers and containers.
func Containers(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// NotReadyReason returns why a pod is not ready: the reason of a waiting container, else a condition, else the phase.
func NotReadyReason(p *corev1.Pod) string {
	for _, c := range Containers(p) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(c.Name+": "+w.Reason+": "+w.Message, ": ")
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			return c.Message
		}
	}
	return string(p.Status.Phase)
}
