package charts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWorkloads(t *testing.T) {
	t.Parallel()
	manifest := `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {selector: {matchLabels: {app: web, tier: front}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}}
---
kind: Job
metadata: {name: migrate, namespace: jobs}
---
not: [YAML
---
kind: DaemonSet
metadata: {name: none}
`
	want := []workload{
		{"Deployment", "shop", "web", "app=web,tier=front"},
		{"Job", "jobs", "migrate", "job-name=migrate"},
	}
	if diff := cmp.Diff(workloads(manifest, "shop"), want, cmp.AllowUnexported(workload{})); diff != "" {
		t.Error(diff)
	}
}

// What a pod says is its own, and hostile: it is bounded and has no control characters.
func TestDescribePod(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "good", Ready: true},
		{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason:  "ImagePullBackOff",
			Message: "no such\x1b[31m\u009b1m image",
		}}},
	}
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	events := []corev1.Event{
		{Type: "Warning", Reason: "Failed", Message: "last", LastTimestamp: at(9)},
		{Type: "Warning", Reason: "Failed", Message: "first", LastTimestamp: at(1)},
		{Type: "Normal", Reason: "Pulled", Message: "fine", LastTimestamp: at(5)},
	}
	got := describePod(p, events, strings.Repeat("old\n", 20)+strings.Repeat("x", 1000)+"\n")
	for _, want := range []string{
		"pod shop/web-1 is not ready: web: ImagePullBackOff: no such\uFFFD[31m\uFFFD1m image\n",
		"event: Failed: first\n  event: Failed: last\n", "xxx…",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "fine") || strings.Count(got, "log: ") != mostLines || len(got) > 1000 {
		t.Errorf("got %d bytes:\n%s", len(got), got)
	}
	p.Status.ContainerStatuses = nil
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "no node",
	}}
	if got := describePod(p, nil, ""); got != "pod shop/web-1 is not ready: no node" {
		t.Error(got)
	}
}

func TestFailedError(t *testing.T) {
	t.Parallel()
	cause := errors.New("timed out")
	e := &FailedError{
		Release: "shop/web", Chart: "web 1.0.0", Err: cause, Pods: []string{"pod a"},
		Undone: "it was rolled back",
	}
	if want := "install chart web 1.0.0 as shop/web: timed out\npod a\nit was rolled back"; e.Error() != want ||
		!errors.Is(e, cause) {
		t.Errorf("got %q", e.Error())
	}
}

func TestWaited(t *testing.T) {
	t.Parallel()
	late := waited(fmt.Errorf("wait: %w", context.DeadlineExceeded), 40*time.Second)
	if late.Error() != "not ready after 40s" || !errors.Is(late, context.DeadlineExceeded) {
		t.Errorf("got %q", late)
	}
	cause := errors.New("no such chart")
	if got := waited(cause, time.Second); got.Error() != cause.Error() {
		t.Error("another reason was replaced")
	}
}

func TestMergeValues(t *testing.T) {
	t.Parallel()
	base := map[string]any{"a": map[string]any{"b": 1, "c": 2}, "l": []any{1}}
	got := MergeValues(base, map[string]any{"a": map[string]any{"b": 3}, "l": []any{2}, "n": true})
	if diff := cmp.Diff(got, map[string]any{
		"a": map[string]any{"b": 3, "c": 2}, "l": []any{2},
		"n": true,
	}); diff != "" {
		t.Error(diff)
	}
	if base["a"].(map[string]any)["b"] != 1 || MergeValues(nil, base)["l"] == nil {
		t.Error("the base was changed, or lost")
	}
}
